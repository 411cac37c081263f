"""From the files as written to the values that the rest of Plait works with."""

from plait.spec import cluster as c
from plait.spec import cluster_document, scenario_document
from plait.spec import job as j
from plait.spec import job_document as d
from plait.spec import scenario as s


def to_job(document: d.JobDocument) -> j.Job:
    """Returns the job that a faultless file describes."""
    return j.Job(
        name=document.name,
        tasks=tuple(_task(task) for task in document.tasks),
        project=document.project,
        priority=document.priority,
        deadline_s=document.deadline,
        precision=_precision(document.precision),
        communication=_communication(document.communication),
        batching=_batching(document.batching) if document.batching is not None else None,
        checkpoint=_checkpoint(document.checkpoint) if document.checkpoint is not None else None,
        failure=_failure(document.failure),
        data=_data(document.data) if document.data is not None else None,
    )


def to_cluster(document: cluster_document.ClusterDocument) -> c.Cluster:
    """Returns the cluster that a faultless file describes."""
    policy = document.policy
    return c.Cluster(
        engine=document.engine,
        nodes=tuple(_node(node) for node in document.nodes),
        policy=c.PolicyChoice(name=policy.name, weights=tuple(policy.weights.items()), round_s=policy.round),
        price_windows=tuple(
            c.PriceWindow(
                name=window.name,
                from_s=window.from_,
                to_s=window.to,
                price_per_hour=tuple(window.price_per_hour.items()),
            )
            for window in document.price_windows
        ),
        projects=tuple(
            c.Project(
                name=project.name,
                weight=project.weight,
                quota=tuple(project.quota.items()),
                limit=tuple(project.limit.items()),
            )
            for project in document.projects
        ),
        racks=tuple((rack, tuple(nodes)) for rack, nodes in document.racks.items()),
        reservations=tuple(
            c.Reservation(
                name=one.name, project=one.project, from_s=one.from_, to_s=one.to, devices=tuple(one.devices.items())
            )
            for one in document.reservations
        ),
        quarantine=c.Quarantine(
            faults=document.quarantine.faults,
            window_s=document.quarantine.window,
            cool_down_s=document.quarantine.cool_down,
            longest_s=document.quarantine.longest,
            test_limit_s=document.quarantine.test_limit,
        ),
        drills=document.drills,
        store=document.store,
        listen=document.monitor.listen,
        sample_interval_s=document.monitor.sample_interval,
    )


def _task(task: d.Task) -> j.Task:
    highest = task.workers.max if task.workers.max is not None else task.workers.min
    return j.Task(
        name=task.name,
        command=tuple(task.command),
        needs=tuple(task.needs),
        workers=j.WorkerRange(min=task.workers.min, max=highest),
        resources=j.Resources(
            any_of=tuple(
                j.DeviceRequest(accelerator=request.accelerator, memory_bytes=request.memory, count=request.count)
                for request in task.resources.any_of or ()
            ),
            mix=task.resources.mix,
        ),
        run_during=task.run_during,
        placement=j.PlacementRules(
            within=task.placement.within,
            at_most=task.placement.at_most,
            per=task.placement.per,
            strategy=task.placement.strategy,
        ),
        expected_runtime_s=task.expected_runtime,
        max_price_per_hour=task.max_price_per_hour,
        environment=tuple(task.env.items()),
        working_directory=task.working_directory,
    )


def _precision(plan: d.PrecisionPlan) -> j.PrecisionPlan:
    return j.PrecisionPlan(
        global_precision=plan.global_,
        device_specific=tuple(
            j.DevicePrecision(
                accelerator_type=entry.type, precision=entry.precision, custom_ops=tuple(entry.custom_ops)
            )
            for entry in plan.device_specific
        ),
        reduce=plan.reduce,
    )


def _communication(rules: d.Communication) -> j.Communication:
    return j.Communication(
        compression=rules.compression.algorithm,
        warmup_steps=rules.compression.warmup_steps,
        overlap=rules.overlap,
        bucket_bytes=rules.bucket_size,
        timeout_s=rules.timeout,
        measure=rules.measure,
    )


def _batching(batching: d.Batching) -> j.Batching:
    return j.Batching(
        global_batch_size=batching.global_batch_size,
        micro_batches=batching.micro_batches,
        split=batching.split,
        learning_rate=batching.learning_rate,
        bitwise=batching.bitwise,
    )


def _checkpoint(checkpoint: d.Checkpoint) -> j.Checkpoint:
    interval, local, peer = checkpoint.interval, checkpoint.local, checkpoint.peer
    return j.Checkpoint(
        url=checkpoint.url,
        interval_s=interval if isinstance(interval, float) else j.Checkpoint(url="").interval_s,
        asynchronous=checkpoint.async_,
        keep=checkpoint.keep,
        keep_every_steps=checkpoint.keep_every,
        keep_best=checkpoint.keep_best,
        bytes_per_s=checkpoint.bandwidth,
        is_automatic=interval == "auto",
        local=j.LocalTier(path=local.path, interval_s=local.interval, keep=local.keep) if local is not None else None,
        peer_interval_s=peer.interval if peer is not None else None,
    )


def _failure(rules: d.Failure) -> j.FailureRules:
    return j.FailureRules(
        max_restarts=rules.max_restarts,
        oom=rules.oom,
        device_fault=rules.device_fault,
        network=rules.network,
        heartbeat_interval_s=rules.heartbeat.interval,
        heartbeat_timeout_s=rules.heartbeat.timeout,
    )


def _data(data: d.Data) -> j.DataSpec:
    return j.DataSpec(
        source=data.source,
        cache=tuple(j.CacheTier(tier=tier.tier, path=tier.path, size_bytes=tier.size) for tier in data.cache),
        predictor=data.prefetch.predictor,
        depth=data.prefetch.depth,
        workers=data.workers,
    )


def _node(node: cluster_document.EmulatedNode) -> c.EmulatedNode:
    return c.EmulatedNode(
        name=node.name,
        accelerator=node.accelerator,
        slots=node.slots,
        cpu_quota=node.cpu_quota,
        uplink_bytes_per_s=node.link.up,
        downlink_bytes_per_s=node.link.down,
        memory_bytes=node.memory,
    )


def to_scenario(document: scenario_document.ScenarioDocument) -> s.Scenario:
    """Returns the scenario that a faultless file describes."""
    return s.Scenario(
        name=document.name,
        cluster=to_cluster(document.cluster),
        time_s=document.time,
        jobs=tuple(
            s.ScenarioJob(
                job=to_job(job),
                ago_s=job.ago,
                elastic=frozenset(task.name for task in job.tasks if task.elastic),
            )
            for job in document.jobs
        ),
        happenings=tuple(_happening(one) for one in document.events),
        expect=tuple(
            s.Expectation(job=one.job, task=one.task, constraint=one.constraint, starts_in_s=one.starts_in)
            for one in document.expect
        ),
    )


def _happening(one: scenario_document.ScenarioEvent) -> s.Happening:
    for what in ("drain", "resume", "lose", "finish", "fail", "cancel"):
        about = getattr(one, what)
        if about is not None:
            return s.Happening(what=what, about=about, ago_s=one.ago)
    return s.Happening(what="price", prices=tuple(one.price.items()), ago_s=one.ago)
