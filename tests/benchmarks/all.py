"""All benchmarks, one after another, and the README's table of their targets in Markdown.

Run `python tests/benchmarks/all.py [--out FILE]`: about half an hour; ``--rounds N`` for less.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import Figure, arguments, machine

SCRIPTS = ("hit", "hit_parts", "order", "graph", "epoch", "breakeven", "model", "peers", "scale")
PEERS = ("diskcache", "grain", "joblib", "monai", "torchio")


def figures(script: str, args: Any, folder: Path) -> list[Figure]:
    """Run a script; its figures."""
    out = folder / f"{script}.json"
    command = [sys.executable, str(Path(__file__).with_name(f"{script}.py")), "--json", str(out)]
    if args.rounds:
        command += ["--rounds", str(args.rounds)]
    print(f"\n# {script}.py\n", flush=True)
    subprocess.run(command, check=True)
    return [Figure(**json.loads(line)) for line in out.read_text().splitlines()]


def markdown(found: dict[str, list[Figure]]) -> str:
    """The figures that have a target."""
    lines = [
        "| script | figure | median | min .. max | ratio | target | against |",
        "|---|---|---|---|---|---|---|",
    ]
    for script, of_script in found.items():
        for line in of_script:
            if line.target is not None:
                cells = f"`{script}.py`", *line.cells
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(args: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = {script: figures(script, args, Path(folder)) for script in args.scripts}
    described = machine(PEERS).replace("\n", "; ")
    met = [line.ratio <= line.target for of in found.values() for line in of if line.target]
    text = f"{markdown(found)}\n\n{described}. {sum(met)} of {len(met)} targets met.\n"
    print(f"\n# The table\n\n{text}")
    if args.out:
        Path(args.out).write_text(text)


if __name__ == "__main__":
    main(arguments(__doc__, rounds=0, scripts=SCRIPTS, out=""))
