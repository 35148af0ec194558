-- Sample and hold on slot grids (M1.3): the newest known version of the last observation at or before each slot's start.
-- The series and their grids are lists of one length; place tells which one a row is of.
-- A value older than max_age_us is a gap; probes of series probe_sid (if any) keep a price alive that was read at each of them.
-- NaN and the smallest integer (NaT) stand for gaps.
WITH asked AS (
    SELECT unnest($sid) AS sid, unnest($first_us) AS first_us, unnest($last_us) AS last_us, unnest($max_age_us) AS max_age_us,
        unnest($probe_sid) AS probe_sid, unnest($probe_age_us) AS probe_age_us, unnest(range(len($sid))) AS place
),
slots AS (
    SELECT place, sid, max_age_us, probe_sid, probe_age_us, unnest(range(first_us, last_us + 1, $step_us)) AS slot FROM asked
),
seen AS (
    SELECT sid, epoch_us(observed_at) AS at_us, arg_max(price_usd, known_at) AS value, epoch_us(max(known_at)) AS known_us
    FROM price WHERE sid IN (SELECT sid FROM asked) AND known_at <= $known_at GROUP BY sid, observed_at
),
probes AS (
    SELECT sid AS probed_sid, epoch_us(observed_at) AS probe_us, epoch_us(min(known_at)) AS probe_known_us
    FROM availability WHERE sid IN (SELECT probe_sid FROM asked) AND known_at <= $known_at GROUP BY sid, observed_at
),
held AS (
    SELECT place, slot, max_age_us, probe_sid, probe_age_us, at_us, value, known_us
    FROM slots ASOF LEFT JOIN seen ON slots.sid = seen.sid AND slot >= at_us
),
fresh AS (
    SELECT place, slot, value, slot - at_us <= max_age_us AS young,
        coalesce(probe_us >= at_us AND slot - probe_us <= probe_age_us, FALSE) AS probed,
        known_us, probe_known_us
    FROM held ASOF LEFT JOIN probes ON probe_sid = probed_sid AND slot >= probe_us
)
SELECT place,
    CASE WHEN young OR probed THEN value ELSE CAST('nan' AS DOUBLE) END AS value,
    CASE WHEN young THEN known_us WHEN probed THEN greatest(known_us, probe_known_us) ELSE CAST(-9223372036854775808 AS BIGINT) END AS known_us
FROM fresh ORDER BY place, slot
