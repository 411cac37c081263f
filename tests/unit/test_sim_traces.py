"""Readers of traces on small files written by hand in each format."""

import json
from pathlib import Path

import pytest

from plait.schedule.policy import Configuration
from plait.sim.clusters import BadCluster, read_cluster, read_prices
from plait.sim.jobs import SimJob
from plait.sim.speeds import Speeds
from plait.sim.tables import BadTrace, ThroughputTable, read_table
from plait.sim.traces.reading import Reading, read_trace

RATES = "v100_steps_per_s,k80_steps_per_s,v100_unconsolidated_steps_per_s,k80_unconsolidated_steps_per_s"
TABLE = f"""model,batch_size_per_gpu,gpus,{RATES}
Net,16,1,10.0,2.0,10.0,2.0
Net,16,2,18.0,0.0,9.0,
Chat,,1,5.0,1.0,5.0,1.0
"""
SPEEDS = Speeds(by_type={"V100": 4.0, "T4": 1.0}, reference="V100", scaling=1.0)


@pytest.fixture
def table(tmp_path: Path) -> ThroughputTable:
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    return read_table(path)


def _read(tmp_path: Path, text: str, reading: Reading, name: str = "trace") -> tuple[str, tuple[SimJob, ...]]:
    path = tmp_path / name
    path.write_text(text)
    return read_trace(path, reading)


def _gavel(job: str, steps: int, size: int, arrival: int, slo: float = -1.0) -> str:
    return f"{job}\tpython main.py\tdir\t-n\t0\t{steps}\t{size}\t1\t{slo}\t{arrival}"


def test_rates_of_the_table(table: ThroughputTable) -> None:
    rates = table.rates("Net", 16, 2)
    assert rates[Configuration(counts=(("V100", 2),))].per_s == 18.0
    assert rates[Configuration(counts=(("V100", 2),), is_spread=True)].per_s == 9.0
    assert rates[Configuration(counts=(("V100", 1),))].per_s == pytest.approx(10.0), "fewer workers waste nothing"
    assert Configuration(counts=(("K80", 2),)) not in rates, "0 means that it does not fit"
    more = table.rates("Net", 16, 1)
    assert more[Configuration(counts=(("V100", 2),))].per_s == pytest.approx(18.0 * 5 / 6)
    assert table.rates("Net", 16, 2) is rates, "jobs of a kind share one object"
    with pytest.raises(BadTrace, match="no 'Nett' with batch size 16; did you mean 'Net'"):
        table.rates("Nett", 16, 1)


def test_gavel(tmp_path: Path, table: ThroughputTable) -> None:
    text = "\n".join([_gavel("Net (batch size 16)", 100, 2, 50, slo=2.0), _gavel("Chat", 30, 1, 20)])
    name, (first, second) = _read(tmp_path, text, Reading(table=table))
    assert name == "Gavel"
    assert (first.kind, first.work, first.submitted_at_s) == ("Chat", 30.0, 0.0), "from the first submission on"
    assert (second.num_workers, second.submitted_at_s) == (2, 30.0)
    assert second.deadline_at_s == pytest.approx(30.0 + 2.0 * 100.0 / 18.0)


def test_gavel_counts_gangs_that_the_table_lacks(tmp_path: Path, table: ThroughputTable) -> None:
    reading = Reading(table=table)
    _, jobs = _read(tmp_path, "\n".join([_gavel("Chat", 1, 4, 0), _gavel("Chat", 1, 1, 0)]), reading)
    assert len(jobs) == 1
    assert dict(reading.left_out) == {"Chat with 4 workers runs on no type of the throughput table": 1}


def test_gavel_elastic_and_the_other_widths(tmp_path: Path, table: ThroughputTable) -> None:
    _, (job,) = _read(tmp_path, _gavel("Net (batch size 16)", 9, 1, 0), Reading(table=table, is_elastic=True))
    assert job.size_range == (1, 2)
    _, (rigid,) = _read(tmp_path, _gavel("Chat", 9, 1, 0), Reading(table=table, is_elastic=True))
    assert rigid.size_range == (1, 1)
    old = "Net (batch size 16)\tcd x\t-step\t1\t77\t12.5\t2"
    _, (seven,) = _read(tmp_path, old, Reading(table=table))
    assert (seven.work, seven.num_workers) == (77.0, 2)
    cells = _gavel("Chat", 9, 1, 7).split("\t")
    shockwave = "\t".join([*cells[:7], "static", *cells[7:9], "-1", cells[9]])
    _, (twelve,) = _read(tmp_path, shockwave, Reading(table=table))
    assert twelve.work == 9.0


def test_gavel_says_what_is_wrong(tmp_path: Path, table: ThroughputTable) -> None:
    good = _gavel("Chat", 1, 1, 0)
    with pytest.raises(BadTrace, match=r"trace:2: 3 columns; Gavel's traces have 10, 12 or 7"):
        _read(tmp_path, f"{good}\na\tb\tc", Reading(table=table))
    with pytest.raises(BadTrace, match="give their throughput table with --table"):
        _read(tmp_path, good, Reading())


ROWS = [
    ("Philly (CSV)", ("timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,vc1\n"
     "2017-10-09 06:01:55,30,2,60,vc2\n")),
    ("Helios", ("job_id,user,vc,jobname,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
     "1,u,vc1,n,1,4,1,COMPLETED,2020-04-01 01:00:00,2020-04-01 01:00:05,x,66,5\n"
     "2,u,vc2,n,2,4,1,FAILED,2020-04-01 00:00:00,2020-04-01 00:00:05,x,30,5\n"
     "3,u,vc2,n,0,4,1,FAILED,2020-04-01 00:00:00,2020-04-01 00:00:05,x,30,5\n")),
    ("Acme", ("job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue\n"
     "1,u1,1,1.0,4,Pretrain,COMPLETED,2023-04-01 01:00:00+08:00,x,x,66,5\n"
     "2,u1,1,2.0,4,Eval,COMPLETED,2023-04-01 00:00:00+08:00,x,x,30,5\n")),
    ("Tiresias", ("job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n0,1,3600,606,vgg,66,30\n"
     "1,2,0,60,vgg,30,30\n")),
    ("ElasticFlow", ("job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration\n"
     "0,3600,20,cifar10,9000,4096,1,66\n1,0,20,ncf,5000,64,2,30\n")),
    ("Muri", ("job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
     "resource_time_0,resource_time_1,resource_time_2,priority\n0,1,3600,5,dqn,128,66,4,490,446,8,0,1\n"
     "1,2,0,5,dqn,128,30,4,490,446,8,0,1\n")),
    ("Alibaba 2023", ("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,"
     "scheduled_time\np0,1,1,1,460,,LS,Running,3600,3666,3600\np1,1,1,2,1000,T4|V100,BE,Succeeded,0,30,0\n"
     "p2,1,1,0,0,,LS,Running,0,9,0\n")),
    ("Alibaba 2020", ("j1,tensorflow,1.0,Terminated,3600.0,3666.0,600.0,29.0,100.0,MISC\n"
     "j2,worker,4.0,Failed,0.0,30.0,600.0,29.0,50.0,T4\nj3,ps,1.0,Failed,0.0,30.0,600.0,29.0,,MISC\n")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), ROWS, ids=[name for name, _ in ROWS])
def test_traces_with_durations(tmp_path: Path, name: str, text: str) -> None:
    found, jobs = _read(tmp_path, text, Reading(speeds=SPEEDS))
    assert found == name
    assert [(job.num_workers, job.work, job.submitted_at_s) for job in jobs] == [(2, 30.0, 0.0), (1, 66.0, 3600.0)]
    first = jobs[0]
    assert first.rate("T4", 2) == pytest.approx(0.25), "a quarter of the speed of the reference"


def test_rows_without_devices_are_counted(tmp_path: Path) -> None:
    reading = Reading(speeds=SPEEDS)
    _read(tmp_path, dict(ROWS)["Alibaba 2023"], reading)
    assert dict(reading.left_out) == {"asked for no device, or never ran": 1}


def test_types_that_were_asked_for(tmp_path: Path) -> None:
    _, jobs = _read(tmp_path, dict(ROWS)["Alibaba 2020"], Reading(speeds=SPEEDS))
    assert [job.allowed for job in jobs] == [("T4",), ()]
    assert jobs[0].rate("V100", 2) == 0.0
    _, pods = _read(tmp_path, dict(ROWS)["Alibaba 2023"], Reading(speeds=SPEEDS))
    assert pods[0].allowed == ("T4", "V100")


def test_deadlines_projects_and_other_units(tmp_path: Path) -> None:
    _, jobs = _read(tmp_path, dict(ROWS)["ElasticFlow"], Reading(speeds=SPEEDS, time_scale=0.5))
    assert [(job.deadline_at_s, job.work) for job in jobs] == [(2500.0, 15.0), (4500.0, 33.0)]
    _, jobs = _read(tmp_path, dict(ROWS)["Philly (CSV)"], Reading(speeds=SPEEDS, is_elastic=True))
    assert [job.project for job in jobs] == ["vc2", "vc1"]
    assert [job.size_range for job in jobs] == [(1, 2), (1, 1)]


def test_philly_as_published(tmp_path: Path) -> None:
    jobs = [
        {
            "status": "Pass", "vc": "vc1", "jobid": "a", "user": "u", "submitted_time": "2017-10-09 07:00:00",
            "attempts": [
                {"start_time": "2017-10-09 07:01:00", "end_time": "2017-10-09 07:02:00",
                 "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu0"]}]},
                {"start_time": "2017-10-09 08:00:00", "end_time": "2017-10-09 08:00:30", "detail": []},
            ],
        },
        {"status": "Killed", "vc": "vc1", "jobid": "b", "user": "u", "submitted_time": "None", "attempts": []},
    ]  # fmt: skip
    reading = Reading(speeds=SPEEDS)
    name, (job,) = _read(tmp_path, json.dumps(jobs, indent=1), reading)
    assert (name, job.num_workers, job.work, job.project) == ("Philly", 3, 90.0, "vc1")
    assert sum(reading.left_out.values()) == 1


def test_workloads_of_applications(tmp_path: Path) -> None:
    where = tmp_path / "profiles" / "ncf"
    where.mkdir(parents=True)
    (where / "placements.csv").write_text(
        "placement,local_bsz,step_time,sync_time\n1,32,0.1,0\n2,16,0.08,0\n2,32,0.12,0\n11,16,0.2,0\n"
    )
    (where / "validation-32.csv").write_text(
        "progress,iteration,metric,grad_sqr,grad_var\n50,50,1,1,1\n100,100,1,1,1\n"
    )
    text = "name,time,application,num_replicas,batch_size\nncf-0,10,ncf,2,32\nyolo-1,20,yolo,1,8\n"
    reading = Reading(speeds=SPEEDS, profiles=tmp_path / "profiles")
    name, (job,) = _read(tmp_path, text, reading)
    assert (name, job.work, job.num_workers) == ("Pollux or Sia", 100.0, 2)
    assert job.rate("V100", 2) == pytest.approx(1.0 / 0.08)
    assert job.rate("V100", 2, is_spread=True) == pytest.approx(1.0 / 0.2)
    assert job.rate("T4", 2) == pytest.approx(0.25 / 0.08)
    assert dict(reading.left_out) == {"application yolo has no profile": 1}
    with pytest.raises(BadTrace, match="name their folder with --profiles"):
        _read(tmp_path, text, Reading(speeds=SPEEDS))


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="no trace format that is known"):
        _read(tmp_path, "just some text\n", Reading())
    with pytest.raises(BadTrace, match=r"trace:2: could not convert string to float: 'soon'"):
        _read(tmp_path, "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,soon,1,1,v\n", Reading())


def test_clusters_in_a_line() -> None:
    cluster = read_cluster("V100:3x4,T4:2", {"V100": 2.5})
    assert cluster.capacity == {"V100": 12, "T4": 2}
    assert [node.id for node in cluster.nodes] == ["V100-0", "V100-1", "V100-2", "T4-0"]
    assert cluster.machines().nodes == {"V100": (4, 4, 4), "T4": (2,)}
    assert cluster.speeds().reference == "V100"
    assert read_cluster("Abacus:2").notes == (
        "no published figures for Abacus: taken to be as fast as the slowest type",
    )
    with pytest.raises(BadCluster, match="no cluster: 'V100'"):
        read_cluster("V100")


def test_clusters_in_files(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("sn,cpu_milli,memory_mib,gpu,model\nn0,1,1,2,P100\nn1,1,1,0,\nn2,1,1,8,V100M16\n")
    assert read_cluster(str(path)).capacity == {"P100": 2, "V100M16": 8}
    described = tmp_path / "cluster.yaml"
    nodes = "nodes: [{name: a, accelerator: V100, slots: 4}, {name: b, accelerator: T4}]"
    described.write_text("apiVersion: v1\n" + nodes + "\n")
    assert read_cluster(str(described)).capacity == {"V100": 4, "T4": 1}


def test_prices() -> None:
    assert read_prices(["A=1.5", "B=2"]) == {"A": 1.5, "B": 2.0}
    with pytest.raises(BadCluster, match="no price: 'A'"):
        read_prices(["A"])
