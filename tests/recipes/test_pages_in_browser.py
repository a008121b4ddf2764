"""The page of recipes/inspect_model.py in headless Chromium: what a click, the keyboard and the pointer show."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from browser import ARROWS, CHROMIUM, DRIVER, ENTER, TAB, Browser

from lacuna import modeling
from lacuna.evaluation import LanguageModel
from lacuna.evaluation.inspection import inspect_text, render_page
from lacuna.tokenization import adapt_tokenizer
from lacuna.training.reports.curves import draw_curves
from lacuna.training.reports.page import write_page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no Chromium: apt-get install chromium chromium-driver"),
]
TEXTS = ["The dog </script><!-- sleeps.", "The fox </script><!-- sleeps."]
KINDS = {"masked": ("modernbert", "LacunaForMaskedLM"), "encoder-decoder": ("bart", "LacunaForConditionalGeneration")}


@pytest.fixture(scope="module")
def pages(tokenizer, tmp_path_factory) -> dict[str, Path]:
    """Pages of small models with random weights: of two texts, and of one."""
    folder = tmp_path_factory.mktemp("pages")
    adapted = adapt_tokenizer(tokenizer=tokenizer, shape="encoder", segments=False, max_length=64)
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "head_dim": 16, "intermediate_size": 32}
    for kind, (family, head) in KINDS.items():
        torch.manual_seed(3)
        config = modeling.LacunaConfig.from_family(
            family, **sizes, num_hidden_layers=2, vocab_size=320, max_position_embeddings=64, initializer_range=0.3
        )
        model = getattr(modeling, head)(config)
        model.set_attn_implementation("eager")
        opened = LanguageModel.of(model=model, tokenizer=adapted, kind=kind)
        texts = TEXTS if kind == "masked" else TEXTS[:1]
        found = [inspect_text(language_model=opened, text=text) for text in texts]
        about = {"model": "<i>model</i>", "head": head, "kind": kind, "facts": ["small"], "made_with": "a test"}
        (folder / f"{kind}.html").write_text(render_page(inspections=found, about=about), encoding="utf-8")
    return {kind: folder / f"{kind}.html" for kind in KINDS}


@pytest.fixture(scope="module", params=[(False, 1280), (True, 390)], ids=["light, wide", "dark, narrow"])
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    dark, width = request.param
    with Browser(dark=dark, width=width) as browser:
        yield browser


def weights_of(path: Path) -> list[list[list[list[int]]]]:
    """[layers, heads, rows, columns] of the first text, in ten-thousandths."""
    found = re.search(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8"))
    assert found
    return json.loads(found[1])["texts"][0]["attention"][0]["weights"]


def panels(browser: Browser) -> tuple[str, list[str]]:
    """The name of the head that is shown large, and its pictures."""
    script = "return [document.querySelector('#chosen').textContent,"
    return browser.run(script + " [...document.querySelectorAll('#panels svg')].map(each => each.innerHTML)]")


def tip(browser: Browser) -> str:
    return browser.run("return document.querySelector('#tip').textContent")


def test_a_click_on_a_head_shows_it(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["masked"])
    browser.click('[data-key="head-0-0"]')
    name, before = panels(browser)
    assert name == "Layer 1, head 1" and len(before) == 3  # both texts and their difference
    browser.click('[data-key="head-1-1"]')
    name, after = panels(browser)
    assert name == "Layer 2, head 2" and all(one != other for one, other in zip(before, after, strict=True))
    pressed = "return [...document.querySelectorAll('.thumb[aria-pressed=true]')].map(each => each.dataset.key)"
    assert browser.run(pressed) == ["head-1-1"]
    browser.click('[data-key="Show0"]')  # the first text alone
    assert len(panels(browser)[1]) == 1
    browser.click('[data-key="Viewlines"]')
    _, (lines,) = panels(browser)
    assert "<path" in lines and "<rect" not in lines
    assert browser.errors() == []


def test_the_keyboard_goes_everywhere(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["masked"])
    focused = "return document.activeElement.dataset.key || document.activeElement.tagName"
    browser.click('[data-key="Show0"]')
    browser.click('[data-key="head-0-0"]')
    _, before = panels(browser)
    browser.press(ARROWS["right"], ARROWS["down"])  # a row of the small pictures is a layer
    assert browser.run(focused) == "head-1-1"
    browser.press(ENTER)
    name, after = panels(browser)
    assert name == "Layer 2, head 2" and after != before and browser.run(focused) == "head-1-1"
    browser.press(TAB)
    assert browser.run(focused) == "matrix-Text 1"  # all heads are one stop
    browser.press(ARROWS["down"], ARROWS["down"], ARROWS["right"], ARROWS["right"])
    weight = weights_of(pages["masked"])[1][1][1][2]
    assert tip(browser).endswith(f"\n{weight / 100:.1f} %") and tip(browser).startswith("The → ")
    browser.click('[data-key="Viewlines"]')
    browser.run("document.querySelector('.lines button[tabindex=\"0\"]').focus()")
    start = browser.run(focused)
    browser.press(ARROWS["down"], ENTER)
    assert browser.run(focused) == f"from-Text 1-{int(start.rsplit('-', 1)[1]) + 1}"
    assert browser.run("return document.activeElement.getAttribute('aria-pressed')") == "true"
    browser.run("document.querySelector('#predictions button[tabindex=\"0\"]').focus()")
    caption = "return document.querySelector('#predictions caption').textContent"
    before = browser.run(caption)
    browser.press(ARROWS["left"] if "pick-0-0" not in browser.run(focused) else ARROWS["right"], ENTER)
    assert browser.run(caption) != before
    assert browser.errors() == []


def test_the_pointer_shows_a_weight(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["masked"])
    browser.click('[data-key="Show0"]')
    browser.click('[data-key="head-0-1"]')
    weights = weights_of(pages["masked"])[0][1]
    for row, column in ((0, 0), (2, 1), (len(weights) - 1, len(weights) - 2)):
        place = browser.run(
            "const frame = document.querySelector('#panels .frame'), n = arguments[0];"
            "frame.scrollIntoView({ block: 'center' });"
            "const box = frame.getBoundingClientRect(); return [box.left, box.top, box.width / n]",
            len(weights),
        )
        browser.point(place[0] + (column + 0.5) * place[2], place[1] + (row + 0.5) * place[2])
        assert tip(browser).endswith(f"\n{weights[row][column] / 100:.1f} %")
    browser.point(2, 2)
    assert tip(browser) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_it_fits_and_is_named(kind: str, browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages[kind])
    assert browser.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert browser.run("return document.querySelector('h1').textContent") == "<i>model</i>"
    assert TEXTS[0] in browser.run("return document.querySelector('#tokens').textContent")
    for summary in ("#weights summary", "#predictions summary"):
        browser.click(summary)
    tables = browser.run(
        "return [...document.querySelectorAll('table')].map(each => [each.caption.textContent,"
        " each.querySelectorAll('th[scope=col]').length, each.querySelectorAll('th[scope=row]').length])"
    )
    assert len(tables) >= 4 and all(caption and columns and rows for caption, columns, rows in tables)
    nodes = browser.devtools("Accessibility.getFullAXTree")["nodes"]
    named = {role: [] for role in ("button", "table", "region", "checkbox", "heading")}
    for node in nodes:
        if (role := node.get("role", {}).get("value")) in named and not node.get("ignored"):
            named[role].append(node.get("name", {}).get("value", ""))
    assert len(named["button"]) > 20 and len(named["region"]) == 4 and len(named["checkbox"]) == 1
    assert [role for role, names in named.items() if not all(name.strip() for name in names)] == []
    if kind == "encoder-decoder":
        before = panels(browser)
        browser.click('[data-key="Attention1"]')
        assert panels(browser) != before and panels(browser)[0].startswith("The decoder reads the encoder")
        browser.click('[data-key="Side1"]')
    assert browser.errors() == []


CONTRAST = """
    const light = color => {
      const [r, g, b] = color.match(/[\\d.]+/g).map(Number).map(x => x / 255)
        .map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const paper = light(getComputedStyle(document.body).backgroundColor);
    const contrast = ink => (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    return [paper, contrast(light(getComputedStyle(document.body).color)),
      contrast(light(getComputedStyle(document.querySelector(arguments[0])).color))]"""


def test_themes_differ_and_can_be_read(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["masked"])
    paper, ink, soft = browser.run(CONTRAST, ".soft")
    assert (paper < 0.05) == browser.dark and ink > 7 and soft > 4.5  # levels AAA and AA of WCAG


def test_the_page_on_runs_fits_and_can_be_read(browser: Browser, tmp_path: Path) -> None:
    lines = "".join(json.dumps({"step": step, "loss": 9 - step / 10}) + "\n" for step in range(1, 21))
    for name, loss in (("one", 3.25), ("other", 3.5)):
        (tmp_path / name).mkdir()
        about = {"objective": "mlm", "data": ["texts/"], "arguments": {"learning_rate": 0.006, "max_steps": 20}}
        about["command"] = f"python recipes/pretrain.py --data texts/ --output_dir {'runs/' * 30}{name}"
        results = {"steps": 20, "eval_loss": loss, "baseline_loss": 6.5, "train_tokens": 4096, "train_seconds": 12.0}
        for file, text in (("run.json", json.dumps(about)), ("results.json", json.dumps(results))):
            (tmp_path / name / file).write_text(text)
        (tmp_path / name / "metrics.jsonl").write_text(lines)
        draw_curves(records=[json.loads(line) for line in lines.splitlines()], path=tmp_path / name / "curves.png")
    write_page([tmp_path / "one", tmp_path / "other"], tmp_path / "runs.html")
    browser.open(tmp_path / "runs.html")
    assert browser.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    paper, ink, caption = browser.run(CONTRAST, "caption")
    assert (paper < 0.05) == browser.dark and ink > 7 and caption > 4.5
    shown = browser.run("return [...document.images].map(each => each.complete && each.naturalWidth > 0)")
    assert shown == [True] * 3
    assert browser.errors() == []
