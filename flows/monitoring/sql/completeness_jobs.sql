-- The jobs that need a decision or a score in a window, as known at its end. finished_us: the first slot in which nothing was left to decide:
-- a user said so, or an allocate run that was done decided nothing for a job that was running. A job is replayed unless it cannot
-- resume (M2.7) or its terms changed after its first slot had begun (M2.9).
WITH changed AS (
    SELECT job, spec, deadline_at, known_at FROM terms WHERE known_at <= $last
    QUALIFY row_number() OVER (PARTITION BY job ORDER BY known_at DESC, revision DESC) = 1
),
as_known AS (
    SELECT name, market, source, origin, created_at, start_at, coalesce(changed.spec, jobs.spec) AS spec,
        coalesce(changed.deadline_at, jobs.deadline_at) AS deadline_at, coalesce(changed.known_at > start_at, FALSE) AS under_way
    FROM jobs LEFT JOIN changed ON changed.job = jobs.name
),
known AS (
    SELECT name, market, source, origin, epoch_us(created_at) AS created_us, epoch_us(start_at) AS start_us,
        epoch_us(deadline_at) AS deadline_us,
        NOT under_way AND coalesce(TRY_CAST(json_extract_string(TRY_CAST(spec AS JSON), '$.checkpoint.resumable') AS BOOLEAN), TRUE) AS replayed
    FROM as_known WHERE created_at <= $last AND start_at <= $last
        AND (deadline_at >= $first OR (created_at >= $first AND deadline_at <= created_at))
),
turns AS (
    SELECT DISTINCT epoch_us(logical_at) AS at_us FROM runs
    WHERE stage = 'allocate' AND status = 'done' AND logical_at <= $last
),
decided AS (SELECT job, epoch_us(slot) AS at_us FROM decisions WHERE job IN (SELECT name FROM known) AND slot <= $last),
told AS (
    SELECT job AS name, min(epoch_us(reported_at)) AS told_us FROM reports WHERE finished AND known_at <= $last GROUP BY job
),
idle AS (
    SELECT name, min(turns.at_us) AS idle_us FROM known JOIN turns
    ON turns.at_us >= start_us AND turns.at_us >= created_us AND turns.at_us < deadline_us
    ANTI JOIN decided ON decided.job = known.name AND decided.at_us >= turns.at_us
    GROUP BY name
)
SELECT known.*, least(idle_us, told_us) AS finished_us,
    (SELECT min(epoch_us(scored_at)) FROM outcomes WHERE job = known.name AND scored_at <= $last) AS scored_us
FROM known LEFT JOIN idle USING (name) LEFT JOIN told USING (name) ORDER BY start_us, name
