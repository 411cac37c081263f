"""Writes the table of measured figures into the readmes, from the results that the benchmarks left.

python benchmarks/unequal_dp.py --seed 1 --json benchmarks/results/unequal_dp.json
python benchmarks/readme_table.py
"""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
HEADINGS = {"README.md": ("Script", "Figure", "Value"), "README.zh.md": ("脚本", "指标", "数值")}


def results() -> list[dict[str, Any]]:
    """Returns the results in the order of their names."""
    files = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def shown(value: float | None, reason: str) -> str:
    """Returns a figure with as many digits as it deserves, or why there is none."""
    if value is None:
        return f"({reason})"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.3f}"


def table(found: list[dict[str, Any]], headings: tuple[str, str, str]) -> str:
    """Returns one Markdown table over all results, and the machine under it."""
    lines = [f"| {' | '.join(headings)} |", "|---|---|---|"]
    for result in found:
        script = f"`{result['benchmark']}.py{' --quick' if result['quick'] else ''}`"
        reasons = result.get("reason", {})
        lines += [
            f"| {script} | `{name}` | {shown(value, reasons.get(name, ''))} |"
            for name, value in result["figures"].items()
        ]
    machine = found[0]["machine"]
    loads = ", ".join(f"{result['benchmark']} {result['machine']['load_1min']:.1f}" for result in found)
    lines += ["", f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}; load: {loads}."]
    return "\n".join(lines)


def main() -> None:
    found = results()
    for name, headings in HEADINGS.items():
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        head, _, rest = text.partition(BEGIN)
        rest = rest.partition(END)[2] if END in rest else rest
        path.write_text(f"{head}{BEGIN}\n\n{table(found, headings)}\n\n{END}{rest}", encoding="utf-8")
        print(f"{name}: {sum(len(result['figures']) for result in found)} figures")


if __name__ == "__main__":
    main()
