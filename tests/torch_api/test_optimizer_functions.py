"""torch.optim's steps as functions of lists, beside torch."""

from __future__ import annotations

from tests.torch_api.both import beside_torch


def test_steps_as_functions():
    """`from torch.optim.adam import adam` was an ImportError."""
    beside_torch("""
from torch.optim.adam import adam, Adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd
from torch.optim.rmsprop import rmsprop
from torch.optim.adagrad import adagrad
from torch.optim.adadelta import adadelta
from torch.optim.adamax import adamax
from torch.optim.nadam import nadam
from torch.optim.radam import radam
from torch.optim.asgd import asgd
from torch.optim.rprop import rprop
import torch.optim._functional as FF
def run(step, *lists, **options):
    params = [torch.tensor([1.0, -2.0, 3.0]), torch.tensor([[0.5]])]
    made = {"s": lambda p, v: torch.tensor(v), "p": lambda p, v: None if v is None else torch.full_like(p, v)}
    state = [[made[size](p, v) for p in params] for size, v in lists]
    out=[]
    for k in range(4):
        grads = [p * 0.5 + 1 + k for p in params]
        with torch.no_grad(): step(params, grads, *state, **options)
        out.append([p.tolist() for p in params])
    return out, [[v if v is None else v.tolist() for v in s] for s in state]
P,S=("p",0.0),("s",0.0)
B=dict(beta1=.9,beta2=.99,lr=.1,weight_decay=.01,eps=1e-8)
say("1", lambda: run(adam,P,P,P,S,amsgrad=True,maximize=False,**B))
say("2", lambda: run(adam,P,P,("p",0.),S,amsgrad=False,maximize=True,foreach=False,**B))
say("3", lambda: run(adamw,P,P,P,S,amsgrad=False,maximize=False,**B))
say("4", lambda: run(sgd,("p",None),weight_decay=.1,momentum=.9,lr=.1,dampening=.5,nesterov=False,maximize=False))
say("5", lambda: run(sgd,("p",0.),weight_decay=.1,momentum=.9,lr=.1,dampening=.5,nesterov=False,maximize=False))
say("6", lambda: run(sgd,("p",None),weight_decay=.1,momentum=0,lr=.1,dampening=0,nesterov=False,maximize=False))
say("7", lambda: run(rmsprop,P,P,P,S,lr=.1,alpha=.9,eps=1e-6,weight_decay=0.,momentum=.5,centered=True,maximize=False))
say("8", lambda: run(adagrad,P,S,lr=.1,weight_decay=0.,lr_decay=.1,eps=1e-8,maximize=False))
say("9", lambda: run(adadelta,P,P,S,lr=.1,rho=.9,eps=1e-6,weight_decay=0.,maximize=False))
say("10", lambda: run(adamax,P,P,S,maximize=False,**B))
say("11", lambda: run(nadam,P,P,("s",1.),S,momentum_decay=.004,maximize=False,**B))
say("12", lambda: run(radam,P,P,S,maximize=False,**B))
say("13", lambda: run(asgd,P,("s",1.),("s",.1),S,lambd=1e-4,lr=.1,t0=2.,alpha=.75,weight_decay=0.,maximize=False))
say("14", lambda: run(rprop,P,("p",.1),S,step_size_min=1e-6,step_size_max=50,etaminus=.5,etaplus=1.2,maximize=False))
say("name", lambda: FF.adam.__name__)
""", 1e-5)


def test_wrong_calls_of_steps():
    beside_torch("""
from torch.optim.adagrad import adagrad
x, step = torch.ones(2), torch.tensor(0.0)
say("kept", lambda: adagrad([x], [x * 2], [x * 0], [step], lr=0.5, weight_decay=0.0, lr_decay=0.0, eps=0.0, maximize=False))
say("values", lambda: [x, step, x.grad, x.requires_grad])
""")


def test_scripted_modules_are_script_modules():
    beside_torch("""
m, n, k = (torch.nn.Linear(2, 2) for _ in range(3))
say("before", lambda: isinstance(m, torch.jit.ScriptModule))
say("script", lambda: isinstance(torch.jit.script(m), torch.jit.ScriptModule))
say("trace", lambda: isinstance(torch.jit.trace(n, torch.ones(1, 2)), torch.jit.ScriptModule))
say("other", lambda: [isinstance(k, torch.jit.ScriptModule), isinstance(3, torch.jit.ScriptModule)])
""")


def test_a_histogram_has_100_bins():
    beside_torch("""
say("bins", lambda: [*torch.histogram(torch.tensor([1.0, 2.0, 5.0, 3.0]))])
say("method", lambda: [*torch.tensor([1.0, 2.0, 5.0, 3.0]).histogram()])
""", 1e-6)
