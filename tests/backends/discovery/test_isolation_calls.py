"""Plugins that pass the proof and fail at a draw, each beside a host in a separate process."""

from fake_dists import EVERYTHING, faulty, place, plugin
from isolation import drawn

HERE = place(faulty("acme", "raise"), "raise")
IN_BETA = HERE.replace("acme", "beta")
NO_GREEDY = EVERYTHING.replace("greedy=True", "greedy=False")


def test_by_default_a_first_call_that_raises_is_drawn_by_the_next_best_for_good(dists):
    dists.add_plugin("acme", faulty("acme", "raise RuntimeError('no kernel image')"))
    code = """
sampler = tokendraw.load_sampler(device="cpu")
names = [sampler.name]
tokens = [draw(sampler) for _ in range(3)]
names += [sampler.name, sampler.resolution.chosen, tokendraw.load_sampler(device="cpu").name]
acme = sys.modules["fake_acme"]
result = [names, tokens, reasons(sampler), warned, len(acme.CALLED), len(acme.BUILT)]
"""
    names, tokens, reasons, warned, called, built = drawn(dists, code)
    assert names == ["acme", "native", "native", "acme"]
    assert tokens == [[1, 0]] * 3
    assert reasons == {
        "native": "best available, priority 0",
        "acme": f"its call raised RuntimeError: no kernel image {HERE}",
    }
    assert warned == [
        [
            "SamplerFallbackWarning",
            f"'acme' failed: its call raised RuntimeError: no kernel image {HERE}. Using 'native' from here on. "
            "Set TOKENDRAW_DISABLE=acme to silence this.",
            "<string>",
        ]
    ]
    assert (called, built) == (1, 2)  # the second time by the second load


def test_a_first_call_that_damages_its_logits_and_raises_is_drawn_from_pristine_ones(dists):
    dists.add_plugin("acme", faulty("acme", "logits.neg_(); logits.numpy()[:] = 7.0; raise RuntimeError"))
    code = """
sampler = tokendraw.load_sampler(device="cpu")
logits = torch.tensor(LOGITS)
tokens = sampler.sample(logits, GREEDY).token_ids.tolist()
result = [sampler.name, tokens, logits.tolist() == LOGITS, len(warned)]
"""
    assert drawn(dists, code) == ["native", [1, 0], True, 1]


def test_an_explicit_choice_whose_call_raises_gives_the_error_itself(dists):
    dists.add_plugin("acme", faulty("acme", "raise RuntimeError('no kernel image')"))
    code = """
import os, pathlib
result = []
for source in ("argument", "variable", "file"):
    if source == "variable":
        os.environ["TOKENDRAW_SAMPLER"] = "acme"
    if source == "file":
        del os.environ["TOKENDRAW_SAMPLER"]
        os.environ["TOKENDRAW_CONFIG"] = "acme.toml"
        pathlib.Path("acme.toml").write_text("sampler = 'acme'")
    sampler = tokendraw.load_sampler("acme" if source == "argument" else None, device="cpu")
    result += [[attempt(lambda: draw(sampler)), sampler.name] for _ in range(2)]
result.append(warned)
"""
    *attempts, warned = drawn(dists, f"import os; os.chdir({str(dists.folder)!r})\n{code}")
    undo = {
        "the argument sampler=": "Leave out sampler=",
        "TOKENDRAW_SAMPLER": "Unset TOKENDRAW_SAMPLER",
        "acme.toml": "Take 'sampler' out of acme.toml",
    }
    assert attempts == [
        [
            [
                "RuntimeError",
                "no kernel image",
                f"'acme' was asked for by {source}, so no other one takes over. {step} to let tokendraw choose.",
                "None",
            ],
            "acme",
        ]
        for source, step in undo.items()
        for _ in range(2)
    ]
    assert warned == []


def test_a_call_that_exits_does_not_end_the_host(dists):
    dists.add_plugin("acme", faulty("acme", "raise SystemExit(1)"))
    code = """
explicit = attempt(lambda: draw(tokendraw.load_sampler("acme", device="cpu")))
sampler = tokendraw.load_sampler(device="cpu")
result = [explicit, draw(sampler), sampler.name, [text for _, text, _ in warned]]
"""
    assert drawn(dists, code) == [
        [
            "PluginError",
            f"'acme' failed: its call raised SystemExit: 1 {HERE}",
            "'acme' was asked for by the argument sampler=, so no other one takes over. "
            "Leave out sampler= to let tokendraw choose.",
            "SystemExit(1)",
        ],
        [1, 0],
        "native",
        [
            f"'acme' failed: its call raised SystemExit: 1 {HERE}. Using 'native' from here on. "
            "Set TOKENDRAW_DISABLE=acme to silence this."
        ],
    ]


def test_a_companion_whose_call_raises_is_replaced_and_the_chosen_one_stays(dists):
    dists.add_plugin("acme", plugin("acme", capabilities=NO_GREEDY))
    dists.add_plugin("beta", faulty("beta", "raise RuntimeError('no driver')", priority=40))
    code = """
sampler = tokendraw.load_sampler(device="cpu")
pairs = [[sampler.name, sampler.resolution.companion]]
tokens = [draw(sampler), draw(sampler, PLAIN), draw(sampler)]
pairs.append([sampler.name, sampler.resolution.companion])
result = [pairs, tokens, reasons(sampler), [text for _, text, _ in warned]]
"""
    assert drawn(dists, code) == [
        [["acme", "beta"], ["acme", "native"]],
        [[1, 0], [1, 0], [1, 0]],
        {
            "acme": "best available, priority 50",
            "native": "available, priority 0; serves the rows that acme cannot",
            "beta": f"its call raised RuntimeError: no driver {IN_BETA}",
        },
        [
            f"'beta' failed: its call raised RuntimeError: no driver {IN_BETA}. Using 'native' from here on. "
            "Set TOKENDRAW_DISABLE=beta to silence this."
        ],
    ]


def test_where_nothing_else_can_draw_the_error_says_so_and_what_it_came_from(dists):
    dists.add_plugin("acme", faulty("acme", "raise RuntimeError('no kernel image')"))
    code = """
sampler = tokendraw.load_sampler(device="cpu")
result = [attempt(lambda: draw(sampler)), sampler.name, warned]
"""
    assert drawn(dists, code, TOKENDRAW_DISABLE="native") == [
        [
            "SamplerUnavailableError",
            "No plugin can serve the operation 'sample' on cpu. Found acme: its call raised RuntimeError: no "
            f"kernel image {HERE}; native: switched off by TOKENDRAW_DISABLE. Take 'native' out of TOKENDRAW_DISABLE.",
            "RuntimeError('no kernel image')",
        ],
        "acme",
        [],
    ]


def test_ids_out_of_range_pass_unseen_and_the_debug_switch_catches_them(dists):
    output = "return tokendraw.SamplerOutput(torch.tensor([1, 3]), torch.ones(2, dtype=torch.bool))"
    dists.add_plugin("acme", faulty("acme", output))
    code = """
import os
result = [draw(tokendraw.load_sampler(device="cpu"))]
os.environ["TOKENDRAW_DEBUG"] = "1"
sampler = tokendraw.load_sampler(device="cpu")
result += [attempt(lambda: draw(sampler)), sampler.name, warned]
"""
    assert drawn(dists, code) == [
        [1, 3],
        [
            "PluginError",
            "'acme' needs to return token_ids in [0, 3), found 3 in row 1 of 2. "
            "Mend the plugin, or set TOKENDRAW_DISABLE=acme.",
            "None",
        ],
        "acme",
        [],
    ]


def test_the_debug_switch_catches_a_call_that_damages_its_logits_and_raises(dists):
    dists.add_plugin("acme", faulty("acme", "logits[1, 2] = float('nan'); raise RuntimeError('late')"))
    code = """
sampler = tokendraw.load_sampler(device="cpu")
result = [attempt(lambda: draw(sampler)), sampler.name, warned]
"""
    assert drawn(dists, code, TOKENDRAW_DEBUG="1") == [
        [
            "PluginError",
            "'acme' needs to leave logits unmodified, found 1 of 2 rows changed. "
            "Mend the plugin, or set TOKENDRAW_DISABLE=acme.",
            "RuntimeError('late')",
        ],
        "acme",
        [],
    ]
