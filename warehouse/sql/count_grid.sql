-- As price_grid.sql, for counts.
WITH asked AS (
    SELECT unnest($sid) AS sid, unnest($first_us) AS first_us, unnest($last_us) AS last_us, unnest($max_age_us) AS max_age_us,
        unnest(range(len($sid))) AS place
),
slots AS (SELECT place, sid, max_age_us, unnest(range(first_us, last_us + 1, $step_us)) AS slot FROM asked),
seen AS (
    SELECT sid, epoch_us(observed_at) AS at_us, arg_max(available, known_at) AS value, epoch_us(max(known_at)) AS known_us
    FROM availability WHERE sid IN (SELECT sid FROM asked) AND known_at <= $known_at
        AND coalesce(kind, '') NOT IN ('score', 'band') GROUP BY sid, observed_at
),
held AS (
    SELECT place, slot, value, known_us, slot - at_us <= max_age_us AS young
    FROM slots ASOF LEFT JOIN seen ON slots.sid = seen.sid AND slot >= at_us
)
SELECT place,
    CASE WHEN young THEN CAST(value AS DOUBLE) ELSE CAST('nan' AS DOUBLE) END AS value,
    CASE WHEN young THEN known_us ELSE CAST(-9223372036854775808 AS BIGINT) END AS known_us
FROM held ORDER BY place, slot
