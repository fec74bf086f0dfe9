"""The command line: pages and profiles of a script's functions, what is said of wrong arguments, and of settings that are none."""

import os
import subprocess
import sys

import pytest

import tracegrad as tg
from tests.tracing.test_page import Parsed, check_links
from tracegrad.__main__ import main
from tracegrad.config import config
from tracegrad.runtime.doctor import devices_report, findings

pytestmark = pytest.mark.usefixtures("on_a_cpu")


def test_the_command_line_writes_a_page(tmp_path, capsys):
    script = tmp_path / "step.py"
    script.write_text("import sys\nimport tracegrad as tg\n\n@tg.trace\ndef step(x):\n    return (x * x).sin()\n\n"
                      "@tg.trace\ndef other(x):\n    return x\n\nfor _ in range(3):\n    y = step(tg.ones(int(sys.argv[1])))\n")
    output = tmp_path / "out.html"
    assert main(["page", "--runs", "1", "-o", str(output), f"{script}:step", "7"]) == 0
    assert capsys.readouterr().out == f"wrote {output}\n"
    program = Parsed(output.read_text()).data["programs"][0]
    check_links(program)
    assert program["inputs"] == ["x: float32[7]"]
    assert program["timeline"], "what nothing else holds is held for the times"
    assert not tg.config.hold
    for wrong, said in ((f"{script}:nothing", "no traced function 'nothing'; it has other, step"),
                        (f"{script}:other", "does not call other: call it where the script runs"),
                        ("step", "there is no script 'step'"), (f"{tmp_path / 'none.py'}:step", "there is no script ")):
        assert main(["page", wrong, "7"]) == 1
        assert said in capsys.readouterr().err
    assert main(["page", f"{script}:step", "-o", str(tmp_path / "none" / "out.html")]) == 1
    assert "there is no folder" in capsys.readouterr().err


def test_a_function_need_not_be_named_where_the_script_calls_one_only(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "step.py"
    script.write_text("import tracegrad as tg\n\nclass Model:\n    @tg.trace\n    def step(self, x):\n        return x.sin()\n\n"
                      "f = tg.trace(lambda x: x)\nModel().step(tg.ones(3))\n")
    assert main(["page", "--runs", "0", "step.py"]) == 0
    assert capsys.readouterr().out == "wrote Model.step.html\n"
    script.write_text(script.read_text() + "f(tg.ones(3))\n")
    assert main(["page", "step.py"]) == 1
    assert capsys.readouterr().err.startswith("page: step.py calls 2 traced functions: Model.step, f; give one, as step.py:Model.step")
    assert main(["profile", "--runs", "0", "step.py:f"]) == 1
    assert capsys.readouterr().err.startswith("profile: runs must be at least 1, got 0")


def test_a_module_of_a_package_is_run_as_by_python(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts_of_it").mkdir()
    (tmp_path / "parts_of_it" / "ops.py").write_text("import tracegrad as tg\nact = tg.tanh\n")
    (tmp_path / "parts_of_it" / "step.py").write_text("import sys\nimport tracegrad as tg\nfrom .ops import act\nstep = tg.trace(act)\n"
                                                   "step(tg.ones(3))\nprint(__package__, sys.argv[1:])\n")
    assert main(["page", "-m", "parts_of_it.step:step", "-o", "out.html", "--runs", "0", "7"]) == 0
    assert capsys.readouterr().out == "parts_of_it ['7']\nwrote out.html\n"
    for name, said in (("parts_of_it.none", "there is no module 'parts_of_it.none'"), ("none.step", "there is no module 'none.step'"),
                       ("parts_of_it", "a package without __main__.py"), ("parts_of_it/step.py", "-m takes a module's, as step")):
        assert main(["page", "-m", f"{name}:step"]) == 1
        assert said in capsys.readouterr().err


def test_options_stand_on_either_side_of_the_script_and_others_are_its_own(tmp_path, capsys):
    script = tmp_path / "step.py"
    script.write_text("import sys\nimport tracegrad as tg\nstep = tg.trace(lambda x: x.sin())\nstep(tg.ones(3))\nprint(sys.argv[1:])\n")
    output = str(tmp_path / "out.html")
    for before, after, own in (
        ([], ["--epochs", "3", "-o", output, "7", "-v", "--runs", "0"], ["--epochs", "3", "7", "-v"]),
        (["--runs", "0", "-o", output], ["--run", "2", "--", "-o", "own.html", "--"], ["--run", "2", "-o", "own.html", "--"]),
    ):
        assert main(["page", *before, f"{script}:step", *after]) == 0
        assert capsys.readouterr().out == f"{own}\nwrote {output}\n"


@pytest.mark.long
def test_the_command_line_as_a_process(tmp_path):
    script = "import tracegrad as tg\nstep = tg.trace(lambda x: x.sin())\nif __name__ == '__main__':\n    step(tg.ones(3))\n"
    (tmp_path / "step.py").write_text(script)
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    subprocess.run([sys.executable, "-m", "tracegrad", "page", "step.py:step"], cwd=tmp_path, env=environment, check=True, timeout=300)
    check_links(Parsed((tmp_path / "step.html").read_text()).data["programs"][0])


def run(*arguments, folder):
    """A process of the command line: its status, and its two outputs."""
    process = subprocess.run([sys.executable, "-m", "tracegrad", *arguments], cwd=folder, check=False, timeout=300,
                             env=os.environ | {"PYTHONPATH": os.getcwd()}, capture_output=True, text=True)
    return process.returncode, process.stdout, process.stderr


def test_run_tells_of_a_program_that_is_not_there_in_a_line(tmp_path):
    assert run("run", "none.py", folder=tmp_path) == (1, "", "run: there is no script 'none.py'\n")
    status, out, told = run("run", "-m", "none", folder=tmp_path)
    assert (status, out, told.count("\n")) == (1, "", 1)
    assert told.startswith("run: there is no module 'none'")


@pytest.mark.long
def test_run_of_a_module_whose_package_imports_torch(tmp_path):
    (tmp_path / "learns").mkdir()
    (tmp_path / "learns" / "__init__.py").write_text("import torch\nones = torch.ones\n")
    (tmp_path / "learns" / "train.py").write_text("import sys\nfrom . import ones\nprint(ones(2).sum().item(), sys.argv[1:])\n"
                                                  "import nowhere\n")
    status, out, told = run("run", "-m", "learns.train", "--lr", "1", folder=tmp_path)
    assert (status, out) == (1, "2.0 ['--lr', '1']\n")
    assert told.endswith("No module named 'nowhere'\n"), "the program's errors are its own"


def test_a_reader_that_stops_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run([sys.executable, "-m", "tracegrad", "devices"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False,
                             timeout=300, env=os.environ | {"PYTHONPATH": os.getcwd()})
    os.close(writer)
    assert (process.returncode, process.stderr) == (1, "")


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"tracegrad {tg.__version__}\n"


def test_what_run_lacks_is_the_program_alone(capsys):
    with pytest.raises(SystemExit):
        main(["run"])
    assert capsys.readouterr().err.endswith("the following arguments are required: program\n")


def test_settings_that_choose_nothing_are_told(monkeypatch):
    monkeypatch.setattr(config, "device", "no such device")
    assert devices_report().splitlines()[-1].startswith("no device is the default: device: none matches 'no such device'")
    monkeypatch.setenv("TRACEGRAD_FUSES", "0")
    monkeypatch.setenv("TRACEGRAD_FUSE", "1")
    told, = (finding for finding in findings() if "TRACEGRAD_FUSE" in finding.text and finding.level == "hint")
    assert told.text == "TRACEGRAD_FUSES is set, but there is no such setting; did you mean TRACEGRAD_FUSE?"
