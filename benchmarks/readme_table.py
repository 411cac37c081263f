"""Writes measured figures into the readmes, and all of them into a page, from the results that the benchmarks left.

python benchmarks/unequal_dp.py --seed 1 --json benchmarks/results/unequal_dp.json
python benchmarks/readme_table.py
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
PAGE = ROOT / "docs" / "reference" / "figures.md"
SHOWN = {
    "bitwise": ("distinct_hashes",),
    "chaos": ("finished", "duplicates", "lost_samples", "leaks", "faults"),
    "ckpt_resume": ("resume_wall_over_memcpy", "steps_lost_max", "reshard_read_over_needed"),
    "ckpt_stall": ("snapshot_over_memcpy_median", "snapshot_over_memcpy_worst", "dcp_over_memcpy_worst"),
    "ckpt_write": ("cpu_s_per_gb", "rate_over_dcp", "rate_over_direct", "upload_over_obstore", "restore_over_obstore"),
    "comm_codec": ("sign1_numba_gb_per_s", "sign1_fallback_gb_per_s", "copy_gb_per_s"),
    "comm_flat": ("ddp_over_plait_100m", "powersgd_over_plait_min", "ddp_over_plait_1g", "ddp_over_plait_unshaped"),
    "comm_islands": ("of_limit", "ring_good_over_plait", "ring_bad_over_plait", "uplink_bytes_over_s_1bit"),
    "comm_overlap": ("exposed_over_blocking", "early_exposed_over_blocking_500m", "speedup_by_overlap"),
    "comm_planner": ("within_25_percent_share", "chosen_over_best_max", "plain_over_chosen_unshaped"),
    "comm_resize": ("resized_over_undisturbed_max", "restored_over_undisturbed_max", "noise_of_seeds_max"),
    "comm_slow_rank": ("ring_over_plait",),
    "comm_traffic": ("traffic_reduction_vs_fp32", "loss_over_adam_max"),
    "controller_kill": ("kills", "jobs_lost", "attempts_doubled", "orphans"),
    "exactly_once": ("samples_lost", "samples_repeated"),
    "memory_pool": ("reserved_over_live_median", "caching_reserved_over_live_median"),
    "placement": ("optimal_ratio_min", "bound_ratio_mean_large"),
    "price_elastic": ("price_performance_gain",),
    "recovery": ("kill_median_s", "kill_worst_s", "torchft_kill_median_s", "torchrun_kill_median_s", "steps_lost_max"),
    "recovery_by_cause": (
        "trials",
        "finished_share",
        "steps_lost_max",
        "equal_share_changed",
        "loss_over_undisturbed_max",
    ),
    "sched_elastic": ("jct_over_sia", "cost_over_sia"),
    "sched_neutral": ("jct_over_gavel", "cost_over_gavel", "jct_over_sia", "cost_over_sia", "worst_rho"),
    "sched_scale": ("round_s_2k_10k", "round_s_8k_10k", "round_s_100k", "gap_max"),
    "step_overhead": ("overhead_ratio",),
    "torture": ("runs", "runs_over_tiers", "wrong_restores", "flips_found_share"),
    "unequal_dp": ("plait_over_sum", "prop_over_sum", "ddp_over_sum", "plait_over_ddp", "equal_plait_over_ddp"),
}
"""What the readmes show of each script; all else is on the page."""
INTRODUCTION = """# Measured figures

All figures that the scripts under `benchmarks/` left in `benchmarks/results`, the last full run of each, lost ones
included. Each script's first lines say what its figures mean.
"""
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


def table(
    found: list[dict[str, Any]], headings: tuple[str, str, str], only: Mapping[str, Sequence[str]] | None = None
) -> str:
    """Returns one Markdown table over the results, or over these figures, and the machine under it."""
    if only is not None:
        found = [result for result in found if result["benchmark"] in only]
    lines = [f"| {' | '.join(headings)} |", "|---|---|---|"]
    for result in found:
        script = f"`{result['benchmark']}.py{' --quick' if result['quick'] else ''}`"
        reasons = result.get("reason", {})
        lines += [
            f"| {script} | `{name}` | {shown(value, reasons.get(name, ''))} |"
            for name, value in result["figures"].items()
            if only is None or name in only[result["benchmark"]]
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
        path.write_text(f"{head}{BEGIN}\n\n{table(found, headings, SHOWN)}\n\n{END}{rest}", encoding="utf-8")
    PAGE.write_text(f"{INTRODUCTION}\n{table(found, HEADINGS['README.md'])}\n", encoding="utf-8")
    print(f"{PAGE.name}: {sum(len(result['figures']) for result in found)} figures")


if __name__ == "__main__":
    main()
