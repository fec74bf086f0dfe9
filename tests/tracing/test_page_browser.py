"""The page in a real browser, headless: what is there, what lights up, that the picture is not blank. Needs Playwright and Chromium."""

import io
import os
import shutil

import numpy as np
import pytest

import tracegrad as tg
from tests.tracing.test_page import HOSTILE, Parsed, large, training
from tracegrad.execute.devices import find_device
from tracegrad.inspection.page.document import embedded

sync_api = pytest.importorskip("playwright.sync_api", reason="the page's browser tests need Playwright: pip install '.[browser]'")
CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="the page's browser tests need Chromium (Debian's package `chromium`)"),
]


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu"] if os.name == "posix" and os.geteuid() == 0 else []
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield started
        started.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pages of a training step, of 5,000 operations, and of two compilations with hostile names."""
    previous, folder = tg.device(), tmp_path_factory.mktemp("pages")
    tg.set_device(find_device("cpu"))
    try:
        step, x, y = training(), tg.randn(100, 8), tg.rand(100, 1)
        step(x, y, 0.1)
        step.page(folder / "step.html", runs=2)

        large().page(folder / "large.html", runs=0)
        hostile = tg.trace(lambda x: (x * 2).sin())
        hostile.__name__ = HOSTILE
        hostile(tg.ones(3))
        x = tg.ones(300, 7)
        hostile(x)
        hostile.page(folder / "hostile.html", runs=1)
    finally:
        tg.set_device(previous)
    return folder


@pytest.fixture
def opened(browser, folder):
    """Open a page; at the end, nothing was asked of a network and no script failed."""
    contexts, wrong = [], []

    def open_page(name, **options):
        context = browser.new_context(**{"viewport": {"width": 1500, "height": 950}, "offline": True, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: wrong.append(request.url) if not request.url.startswith("file:") else None)
        page.goto((folder / name).as_uri())
        page.wait_for_selector("#app[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def lit(page, kind):
    return page.locator(f"[data-kind={kind}].lit").count()


def test_a_line_lights_up_what_became_of_it_and_back(opened):
    page = opened("step.html")
    assert page.locator("#kernels .word", has_text="__kernel").count() > 0, "C is highlighted"
    loss = page.locator("#source .row[data-kind=line]", has_text="mse_loss")
    assert page.locator(".lit").count() == 0
    loss.hover()
    assert lit(page, "line") == 1
    for kind in ("node", "box", "code", "kernel", "step"):
        assert lit(page, kind) > 0, kind
    assert page.locator("#kernels .row.lit", has_text="tanh").count() > 0
    assert page.locator("#kernels .row.lit", has_text="model_0_weight_new_i =").count() == 0, "that is another line's"
    text = page.locator("#status").inner_text()
    for part in ("test_page.py:", "operations", "launches", "moved", "flop", "of the limit of", "of memory"):
        assert part in text
    page.mouse.move(5, 5)
    assert page.locator(".lit").count() == 0
    loss.click()
    page.mouse.move(5, 5)
    assert lit(page, "line") == 1, "a click stays"
    page.keyboard.press("Escape")
    assert page.locator(".lit").count() == 0
    tanh = page.locator("#canvas .node", has_text="tanh")
    tanh.hover()
    assert "mse_loss" in page.locator("#source .row.lit").inner_text()
    assert "model.1" in page.locator("#status").inner_text()
    page.locator("#kernels .row[data-kind=code]", has_text="model_0_weight_new_i =").first.hover()
    assert "p.sub_" in page.locator("#source .row.lit").inner_text()
    page.locator("#timeline [data-kind=step]").first.hover()
    assert lit(page, "kernel") == 1
    assert lit(page, "line") > 0


def test_tabs_folds_zoom_and_search(opened):
    page = opened("step.html")
    tabs = {"memory": "[data-kind=slot]", "why": "li", "compiled": "#guards li", "beside": "p", "timeline": "[data-kind=step]"}
    for name, inside in tabs.items():
        page.locator(f"[data-tab={name}]").first.click()
        assert page.locator(f"#{name}").is_visible()
        assert page.locator(f"#{name} {inside}").count() > 0
    page.locator("[data-tab=memory]").first.click()
    page.locator("#memory [data-kind=slot]").first.hover()
    assert lit(page, "line") == 1
    page.locator("#fold").select_option("module")
    labels = page.locator("#canvas .box").all_text_contents()
    assert {"model.0", "model.2"} <= {label.strip("▸▾ ").split(" ")[0] for label in labels}
    assert page.locator("#canvas .box.derived").count() > 0
    assert page.locator("#canvas .node").count() == 0
    page.locator("#canvas .toggle").first.click()
    assert page.locator("#canvas .node").count() > 0
    before = page.locator("#view").get_attribute("transform")
    page.locator("#canvas").hover()
    page.mouse.wheel(0, -200)
    page.wait_for_function("before => document.getElementById('view').getAttribute('transform') !== before", arg=before)
    page.locator("#search").fill("matmul")
    assert "operation" in page.locator("#found").inner_text()
    assert page.locator("#canvas .found").count() > 0
    left, right = (page.locator(f"#canvas .box{kind}").first.bounding_box()["x"] for kind in (":not(.derived)", ".derived"))
    assert left < right, "forward on the left, backward on the right"


def test_the_timeline_of_a_long_call_is_in_milliseconds(opened, folder):
    text = (folder / "step.html").read_text()
    data = Parsed(text).data
    program = data["programs"][0]
    before, program["timeline"] = embedded(data), [[step, start, 45678.0] for step, start, _ in program["timeline"]]
    assert before in text
    (folder / "long.html").write_text(text.replace(before, embedded(data)))
    assert opened("long.html").locator("#timeline p").first.text_content().startswith("one call: 45.68 ms from the first launch on")


def test_five_thousand_operations_can_be_opened(opened):
    page = opened("large.html")
    assert page.locator("#canvas .box").count() <= 3
    page.locator("button[title='open all boxes']").click()
    assert page.locator("#canvas .node").count() > 5000
    page.locator("#search").fill("tanh")
    assert page.locator("#canvas .node.found").count() == 1250
    page.locator("#source .row[data-kind=line]").first.hover()
    assert lit(page, "node") > 1000


def test_hostile_names_and_two_compilations_side_by_side(opened):
    page = opened("hostile.html")
    assert page.evaluate("document.images.length") == 0
    assert page.locator("h1").inner_text() == HOSTILE.replace("\u2028", page.locator("h1").inner_text()[HOSTILE.index("\u2028")])
    page.locator("[data-tab=beside]").click()
    assert page.locator("#beside tr.differs").count() > 0
    assert page.locator("#beside .pair .row.differs").count() > 0
    page.locator("#program").select_option("1")
    assert "float32[3]" in page.locator("#compiled").text_content()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_are_not_blank_and_follow_the_scheme(opened, scheme):
    pyplot = pytest.importorskip("matplotlib.image", reason="reads the screenshot")
    page = opened("step.html", color_scheme=scheme)
    image = pyplot.imread(io.BytesIO(page.screenshot()), format="png")[..., :3]
    paper = image.reshape(-1, 3)[np.lexsort(image.reshape(-1, 3).T)][image.size // 6]
    assert (paper.mean() > 0.8) == (scheme == "light")
    height, width = image.shape[:2]
    parts = {"source": image[60:300, :width // 4], "graph": image[100:height // 2, width // 3:width // 2],
             "kernels": image[60:height // 2, 2 * width // 3:], "timeline": image[3 * height // 4:]}
    for name, part in parts.items():
        assert len(np.unique((255 * part).astype(int).reshape(-1, 3), axis=0)) > 8, f"{name} is blank"


def test_a_phone(opened):
    """The parts stand below each other, what is lit is told at the top, a tap opens a box, and two fingers zoom."""
    page = opened("step.html", viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("#fold").select_option("module")
    page.locator("#canvas .toggle").first.tap()
    assert page.locator("#canvas .node").count() > 0
    assert page.locator("header").bounding_box()["y"] == 0, "also where the page is scrolled down"
    canvas = page.locator("#canvas").bounding_box()
    x, y = canvas["x"] + canvas["width"] / 2, min(canvas["y"] + canvas["height"] / 2, 800)
    scale = "Number(document.getElementById('view').getAttribute('transform').match(/scale\\((.*)\\)/)[1])"
    before, fingers = page.evaluate(scale), page.context.new_cdp_session(page)
    for kind, apart in (("touchStart", 40), ("touchMove", 60), ("touchMove", 80)):
        points = [{"x": x - apart, "y": y, "id": 0}, {"x": x + apart, "y": y, "id": 1}]
        fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    fingers.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    assert page.evaluate(scale) > 1.5 * before


def test_it_prints(opened, tmp_path):
    page = opened("step.html")
    page.emulate_media(media="print")
    assert page.locator("#memory").is_visible()
    assert page.locator("#why").is_visible()
    assert not page.locator("nav").is_visible()
    assert len(page.pdf()) > 10_000
