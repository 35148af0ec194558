-- Sample and hold on a slot grid (M1.3): the newest known version of the last observation at or before each slot's start.
-- A value older than $max_age_us is a gap; probes of series $probe_sid (if any) keep a price alive that was read at each of them.
-- NaN and the smallest integer (NaT) stand for gaps.
WITH slots AS (SELECT range AS slot FROM range($first_us, $last_us + 1, $step_us)),
seen AS (
    SELECT epoch_us(observed_at) AS at_us, arg_max(price_usd, known_at) AS value, epoch_us(max(known_at)) AS known_us
    FROM price WHERE sid = $sid AND known_at <= $known_at GROUP BY observed_at
),
probes AS (
    SELECT epoch_us(observed_at) AS probe_us, epoch_us(min(known_at)) AS probe_known_us
    FROM availability WHERE sid = $probe_sid AND known_at <= $known_at GROUP BY observed_at
),
held AS (SELECT slot, at_us, value, known_us FROM slots ASOF LEFT JOIN seen ON slot >= at_us),
fresh AS (
    SELECT slot, value, slot - at_us <= $max_age_us AS young,
        coalesce(probe_us >= at_us AND slot - probe_us <= $probe_age_us, FALSE) AS probed,
        known_us, probe_known_us
    FROM held ASOF LEFT JOIN probes ON slot >= probe_us
)
SELECT slot,
    CASE WHEN young OR probed THEN value ELSE CAST('nan' AS DOUBLE) END AS value,
    CASE WHEN young THEN known_us WHEN probed THEN greatest(known_us, probe_known_us) ELSE CAST(-9223372036854775808 AS BIGINT) END AS known_us
FROM fresh ORDER BY slot
