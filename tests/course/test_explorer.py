"""Sliders, driven in the kernel: the image is what `draw` gives for their values."""

import matplotlib.pyplot as plt

from course import explorer, plots


def test_moving_a_slider_redraws_with_its_value():
    seen = []

    def draw(a, b):
        seen.append((a, b))
        figure, axis = plt.subplots(figsize=(1, 1))
        axis.plot([0, a], [0, b])
        return figure

    play = explorer.Explorer(
        draw,
        {
            "a": explorer.slider("a", 1.0, 0.0, 2.0, 0.5),
            "b": explorer.slider("b", 1, 0, 3, 1),
        },
    )
    before = play.image.value
    play.controls["b"].value = 3
    assert seen == [(1.0, 1), (1.0, 3)]
    assert play.image.value != before
    play.controls["b"].value = 1
    assert play.image.value == before, "the same values draw the same picture"


def test_figures_are_closed_after_drawing():
    count = len(plt.get_fignums())
    explorer.clip_explorer("ppo")
    assert len(plt.get_fignums()) == count


def test_every_slider_of_the_clip_explorer_shows():
    play = explorer.clip_explorer("ppo", compare=("grpo",))
    for name, value in (("epsilon_low", 0.6), ("epsilon_high", 0.9), ("size", 2.0)):
        before = play.image.value
        play.controls[name].value = value
        assert play.image.value != before, name


def test_figures_are_saved_where_asked(tmp_path, monkeypatch):
    monkeypatch.setenv("REFIMPL_FIGURES", str(tmp_path / "deep"))
    figure, _ = plt.subplots()
    plots.save(figure, "one")
    plt.close(figure)
    assert (tmp_path / "deep" / "one.png").read_bytes().startswith(b"\x89PNG")
