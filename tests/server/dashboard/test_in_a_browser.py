"""The page in Chromium, in front of a real loader that follows a real trainer."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tensorflow as tf
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from hotdelta.chain import Position
from loader import LoaderStatus, SanityLimits, SanitySettings, State
from server.app import create_app
from tests.loader.step_model import Trainer, find_commit
from tests.server.connections import serving, serving_app
from tests.server.dashboard.conftest import MAX_WAIT_MS, TOKEN, followed
from tests.server.fake_model import FakeModel
from tests.server.models.fleets import TOKEN as OPERATOR_TOKEN
from tests.server.models.fleets import Answering, Yard, several
from tests.waiting import LIMIT_SECONDS, wait_until

StartTrainer = Callable[[], Trainer]
Look = Callable[..., Page]
QUESTION = {"inputs": {"ids": [1, 2, 3]}}
LIMITS = SanityLimits(max_abs=50.0)
SMALL_VALUES = SanitySettings(LIMITS, LIMITS)


def ask(url: str, position: object = "1.2") -> None:
    """A prediction from a position, which is served then."""
    question = {**QUESTION, "min_position": str(position), "wait_ms": MAX_WAIT_MS}
    assert httpx.post(f"{url}/predict", json=question, timeout=LIMIT_SECONDS).status_code == 200


def ready(url: str) -> None:
    wait_until(
        lambda: httpx.get(f"{url}/readyz", timeout=LIMIT_SECONDS).status_code == 200, "the server is ready"
    )


def version(url: str) -> dict[str, Any]:
    document: dict[str, Any] = httpx.get(f"{url}/model/version", timeout=LIMIT_SECONDS).json()
    return document


def cells(page: Page, table: str, row: int) -> list[str]:
    found: list[str] = page.locator(f"#{table} tbody tr").nth(row).locator("td").all_inner_texts()
    return found


def test_the_numbers_of_the_page_are_those_of_the_server(root: Path, train: StartTrainer, look: Look) -> None:
    with followed(root) as url:
        ready(url)
        trainer = train()
        trainer.train([1, 5, 9])
        position = trainer.train([3])
        ask(url, position)

        page = look(url)

        expect(page.locator("#position")).to_have_text(str(position))
        expect(page.locator("#updates")).to_have_text("2")
        expect(page.locator("#connection")).to_have_text("live")
        told = version(url)
        expect(page.locator("#step")).to_have_text(f"step {told['step']}")
        expect(page.locator("#state")).to_have_text("following")
        expect(page.locator("#behind")).to_have_text("0.0 s")
        manifest = find_commit(root / "run", position)
        expect(page.locator("#applied tbody tr")).to_have_count(2)
        row = cells(page, "applied", 0)
        assert row[:2] == [str(position), "delta"]
        assert int(row[3]) == manifest.rows_changed == told["last_update"]["rows"]
        assert row[4] == f"{manifest.serving_bytes} B"
        tables = {cells(page, "tables", number)[0]: cells(page, "tables", number) for number in range(2)}
        assert {key: (row[1], row[3]) for key, row in tables.items()} == {
            "users": ("64", "1 (1.6 %)"),
            "items": ("64", "1 (1.6 %)"),
        }
        expect(page.locator("#answers tbody")).to_have_text("hotdelta200: 1")
        live = page.locator('#chain g[data-state="live"]')
        assert live.get_attribute("data-position") == str(position)
        expect(page.locator("#chain g")).to_have_count(4)


def test_an_update_is_there_without_a_reload_and_in_the_charts(
    root: Path, train: StartTrainer, look: Look
) -> None:
    with followed(root) as url:
        ready(url)
        page = look(url)
        expect(page.locator("#position")).to_have_text("1.2")
        expect(page.locator("#lag-chart")).to_have_attribute("aria-label", "No update yet")

        position = train().train([1])
        ask(url, position)

        expect(page.locator("#position")).to_have_text(str(position))
        for chart in ("lag", "size", "latency", "rate"):
            expect(page.locator(f"#{chart}-chart canvas")).to_have_count(1)
        label = page.locator("#lag-chart").get_attribute("aria-label")
        assert label is not None
        assert str(position) in label
        expect(page.locator("#lag")).to_contain_text("ms")
        expect(page.locator("#latency-chart")).to_have_attribute(
            "aria-label", re.compile("median .* ms, p95")
        )


class Static(Answering):
    """Follows no chain."""

    def status(self) -> LoaderStatus:
        return replace(super().status(), state=State.STATIC)


def order(page: Page, button: str, *, token: str = "", position: str | None = None) -> None:
    if not page.locator("#order").is_visible():
        page.get_by_role("button", name=button).first.click()
    if position is not None:
        page.locator("#order-position").fill(position)
    page.locator("#order-token").fill(token)
    page.locator("#order-confirm").click()


def test_a_rollback_by_click_is_refused_without_the_token_and_works_with_it(
    root: Path, train: StartTrainer, look: Look
) -> None:
    with followed(root) as url:
        ready(url)
        trainer = train()
        before, after = trainer.train([1]), trainer.train([2])
        ask(url, after)
        page = look(url)
        expect(page.locator("#position")).to_have_text(str(after))

        order(page, "Roll back")
        expect(page.locator("#order-error")).to_contain_text("an order needs a token")
        order(page, "Roll back", token=TOKEN[:-1])
        expect(page.locator("#order-error")).to_contain_text("this one is not")
        assert version(url)["position"] == str(after)

        expect(page.locator("#order-position")).to_have_value(str(before))
        order(page, "Roll back", token=TOKEN)

        expect(page.locator("#order")).not_to_be_visible()
        expect(page.locator("#outcome")).to_have_text(f"Roll back steps: done, {before} is served")
        expect(page.locator("#position")).to_have_text(str(before))
        expect(page.locator("#state")).to_have_text("pinned")
        assert version(url)["position"] == str(before)
        refused = page.locator("#refused tbody tr").first
        expect(refused).to_contain_text(f"{after}")
        expect(refused).to_contain_text("rolled back")
        expect(page.locator(f'#chain g[data-position="{after}"]')).to_have_attribute(
            "data-state", "rolled_back"
        )

        order(page, "Resume", token=TOKEN)
        expect(page.locator("#position")).to_have_text(str(after))
        expect(page.locator("#state")).to_have_text("following")
        expect(page.locator("#nothing-refused")).to_be_visible()


def test_an_order_that_cannot_be_carried_out_says_why(root: Path, look: Look) -> None:
    with followed(root) as url:
        ready(url)
        page = look(url)
        expect(page.locator("#position")).to_have_text("1.2")

        order(page, "Pin", token=TOKEN, position="7.7")

        expect(page.locator("#order-error")).to_contain_text("7.7")
        page.locator("#order-cancel").click()
        expect(page.locator("#order")).not_to_be_visible()
        expect(page.locator("#order-token")).to_have_value("")
        order(page, "Pin", token=TOKEN, position="")
        expect(page.locator("#state")).to_have_text("pinned")


def test_what_is_quarantined_says_why_and_is_released_by_click(
    root: Path, train: StartTrainer, look: Look
) -> None:
    with followed(root, sanity=SMALL_VALUES) as url:
        ready(url)
        trainer = train()
        rows = tf.fill([1, 4], 70.0)
        tf.raw_ops.ResourceScatterUpdate(resource=trainer.model.users.handle, indices=[5], updates=rows)
        trainer.writer.touch("users", np.array([5]))
        bad = trainer.train([1])

        page = look(url)

        expect(page.locator("#state")).to_have_text("degraded")
        expect(page.locator("#refused .why")).to_contain_text("a value of 70 is larger than 50")
        expect(page.locator("#reason")).to_contain_text("is larger than 50")
        expect(page.locator(f'#chain g[data-position="{bad}"]')).to_have_attribute("data-state", "values")
        order(page, f"Release {bad}", token=TOKEN)
        expect(page.locator("#position")).to_have_text(str(bad))
        assert version(url)["position"] == str(bad)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(root: Path, train: StartTrainer, look: Look, scheme: str) -> None:
    with followed(root, sanity=SMALL_VALUES) as url:
        ready(url)
        trainer = train()
        ask(url, trainer.train([1]))
        page = look(url, color_scheme=scheme)
        expect(page.locator("#updates")).to_have_text("1")
        expect(page.locator("#latency-chart canvas")).to_have_count(1)
        for is_ordering in (False, True):
            if is_ordering:
                page.get_by_role("button", name="Roll back").click()
            found = Axe().run(page).response["violations"]
            serious = [
                (each["id"], each["nodes"][0]["html"])
                for each in found
                if each["impact"] in ("serious", "critical")
            ]
            assert serious == []


def test_a_phone_scrolls_in_one_direction_only(root: Path, train: StartTrainer, look: Look) -> None:
    with followed(root) as url:
        ready(url)
        ask(url, train().train([1]))
        page = look(url, viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
        expect(page.locator("#updates")).to_have_text("1")
        expect(page.locator("#rate-chart canvas")).to_have_count(1)

        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        button = page.get_by_role("button", name="Roll back").bounding_box()
        assert button is not None
        assert button["height"] >= 30


def test_a_server_that_asks_for_a_token_is_looked_at_with_one(tmp_path: Path, look: Look) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    with serving(FakeModel(), predict_token_file=tokens) as (host, port):
        page = look(f"http://{host}:{port}")
        expect(page.locator("#connection")).to_have_text("a token is needed")
        page.locator("#access-token").fill("another token than that")
        page.get_by_role("button", name="Look").click()
        expect(page.locator("#access-error")).to_have_text("This token is not known here.")
        expect(page.locator("#step")).to_have_text("")

        page.locator("#access-token").fill(TOKEN)
        page.get_by_role("button", name="Look").click()

        expect(page.locator("#position")).to_have_text("1.1")
        expect(page.locator("#no-orders")).to_be_visible()
        expect(page.get_by_role("button", name="Roll back")).to_be_disabled()


def test_a_server_that_stops_waits_for_nobody_who_looks_and_is_found_again(look: Look) -> None:
    with serving(FakeModel(), stop_seconds=LIMIT_SECONDS) as (host, port):
        page = look(f"http://{host}:{port}")
        expect(page.locator("#connection")).to_have_text("live")
    expect(page.locator("#connection")).to_have_text("connection lost, trying again")


def test_each_of_several_models_is_shown_and_ordered_by_its_name(tmp_path: Path, look: Look) -> None:
    yard = Yard({"a": Answering(), "b": Answering(Position(2, 7))})
    app = create_app(several(tmp_path, "a", "b"), yard.make)
    with serving_app(app) as (host, port):
        page = look(f"http://{host}:{port}")
        expect(page.locator("#position")).to_have_text("1.1")
        assert page.locator("#model option").all_inner_texts() == ["a", "b"]

        page.get_by_label("Model").select_option("b")

        expect(page.locator("#position")).to_have_text("2.7")
        page.get_by_role("button", name="Pin").click()
        expect(page.locator("#order-title")).to_have_text("Pin b")
        order(page, "Pin", token=OPERATOR_TOKEN, position="2.6")
        expect(page.locator("#order")).not_to_be_visible()
        expect(page.locator("#outcome")).to_contain_text("Pin b: done")
        assert yard.models["b"].orders == [("pin", Position(2, 6))]
        assert yard.models["a"].orders == []


def test_a_model_that_is_unloaded_under_the_page_is_said_to_be_gone(tmp_path: Path, look: Look) -> None:
    yard = Yard({"a": Answering(), "b": Answering(Position(2, 7))})
    app = create_app(several(tmp_path, "a", "b"), yard.make)
    with serving_app(app) as (host, port):
        url = f"http://{host}:{port}"
        page = look(url)
        page.get_by_label("Model").select_option("b")
        expect(page.locator("#position")).to_have_text("2.7")

        bearer = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
        unloaded = httpx.post(f"{url}/models/b/unload", headers=bearer, timeout=LIMIT_SECONDS)
        assert unloaded.status_code == 200

        expect(page.locator("#reason")).to_have_text("b is not served here any more: choose another model.")
        expect(page.locator("#position")).to_have_text("")
        expect(page.get_by_role("button", name="Roll back")).to_be_disabled()
        assert page.get_by_label("Model").input_value() == "b"
        page.get_by_label("Model").select_option("a")
        expect(page.locator("#position")).to_have_text("1.1")
        expect(page.locator("#choice")).not_to_be_visible()
        expect(page.locator("#name")).to_have_text("a")
        expect(page.get_by_role("button", name="Roll back")).to_be_enabled()


def test_a_long_name_does_not_widen_a_phone_and_a_static_model_takes_no_orders(
    tmp_path: Path, look: Look
) -> None:
    long = "a_recommender_" + "of_films_and_series_" * 2
    long = long[:53].ljust(53, "x")
    yard = Yard({long: Answering(), "b": Static()})
    app = create_app(several(tmp_path, long, "b"), yard.make)
    with serving_app(app) as (host, port):
        page = look(
            f"http://{host}:{port}", viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True
        )
        expect(page.locator("#position")).to_have_text("1.1")
        expect(page.get_by_role("button", name="Roll back")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360

        page.get_by_label("Model").select_option("b")

        expect(page.locator("#state")).to_have_text("static")
        for name in ("Roll back", "Pin", "Resume"):
            expect(page.get_by_role("button", name=name)).not_to_be_visible()
