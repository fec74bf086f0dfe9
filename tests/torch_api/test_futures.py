"""torch.futures, and what packages' own tests of optimizers ask for, beside torch."""

from tests.torch_api.both import beside_torch


def test_futures():
    beside_torch("""
        import threading
        from torch.futures import Future, collect_all, wait_all
        def told(f):
            try:
                return f()
            except Exception as error:
                return type(error).__mro__[-4 if isinstance(error, RuntimeError) else 0].__name__, isinstance(error, RuntimeError)
        seen = []
        f = Future()
        doubled = f.then(lambda f: f.value() * 2)
        f.add_done_callback(lambda f: seen.append(f.value()))
        say("before", lambda: [f.done(), doubled.done(), isinstance(told(f.value), tuple)])
        thread = threading.Thread(target=lambda: f.set_result(torch.ones(2)))
        thread.start()
        say("waited", lambda: [f.wait(), doubled.wait()])
        thread.join()
        say("done", lambda: [f.done(), seen])
        say("late", lambda: f.then(lambda f: f.value() + 1).wait())
        say("twice", lambda: told(lambda: f.set_result(3))[1])
        bad = Future[int]()
        after = bad.then(lambda f: f.value() + 1)
        bad.set_exception(KeyError("no"))
        say("an error", lambda: [told(bad.wait)[1], told(bad.value)[1], told(after.wait)[1]])
        say("all", lambda: [[g.value() for g in collect_all([f, doubled]).wait()], wait_all([f, doubled]), collect_all([]).wait()])
        say("one fails", lambda: [told(lambda: wait_all([f, bad]))[1], collect_all([f, bad]).done(), told(collect_all([bad, f]).wait)[1]])
        say("names", lambda: isinstance(f, torch.Future))
        say("forked", lambda: told(lambda: torch.jit.fork(lambda: {}[1]))[1])
    """)


def test_states_of_optimizers_under_keys_of_the_programs_own():
    """pytorch_optimizer's LookSAM and FriendlySAM; and there is no state before the first step."""
    beside_torch("""
        class Mine(torch.optim.Optimizer):
            def __init__(self, params): super().__init__(params, {"lr": 0.1})
            @torch.no_grad()
            def step(self):
                for p in self.param_groups[0]["params"]:
                    self.state["all"]["count"] = self.state["all"].get("count", 0) + 1
                    self.state[p]["last"] = p.grad.clone()
                    p.sub_(p.grad, alpha=0.1)
        p, q = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
        optimizer = Mine([p, q])
        say("none", lambda: [len(optimizer.state), bool(optimizer.state), len(torch.optim.SGD([p]).state)])
        for _ in range(3):
            (p * q).sum().backward()
            optimizer.step()
        say("some", lambda: [len(optimizer.state), optimizer.state["all"], p])
        say("saved", lambda: optimizer.state_dict())
        other = Mine([p, q])
        other.load_state_dict(optimizer.state_dict())
        say("again", lambda: [other.state["all"], other.state_dict()])
        del p.grad
        say("deleted", lambda: [p.grad, q.grad is None])
    """, 1e-6)


def test_targets_of_cosine_embedding_loss_repeat():
    beside_torch("""
        torch.manual_seed(0)
        x, y = torch.randn(3, 4), torch.randn(3, 4)
        loss = torch.nn.functional.cosine_embedding_loss
        for i, (a, b, t) in enumerate(((x, y, torch.ones(1)), (x, y, -torch.ones(3)), (x, y[:1], torch.ones(3)),
                                       (x[:1], y[:1], torch.ones(2)), (x[0], y[0], torch.tensor(1)), (x, y, torch.tensor(1)),
                                       (x[0], y[0], torch.ones(1)),
                                       (x, y, torch.ones(2)), (x, y, torch.ones(3, 1)))):
            def told():
                try:
                    return loss(a, b, t, reduction="none")
                except RuntimeError:
                    return "RuntimeError"
            say(str(i), told)
    """, 1e-6)
