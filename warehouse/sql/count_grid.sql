-- As price_grid.sql, for counts.
WITH slots AS (SELECT range AS slot FROM range($first_us, $last_us + 1, $step_us)),
seen AS (
    SELECT epoch_us(observed_at) AS at_us, arg_max(available, known_at) AS value, epoch_us(max(known_at)) AS known_us
    FROM availability WHERE sid = $sid AND known_at <= $known_at GROUP BY observed_at
),
held AS (SELECT slot, value, known_us, slot - at_us <= $max_age_us AS young FROM slots ASOF LEFT JOIN seen ON slot >= at_us)
SELECT slot,
    CASE WHEN young THEN CAST(value AS DOUBLE) ELSE CAST('nan' AS DOUBLE) END AS value,
    CASE WHEN young THEN known_us ELSE CAST(-9223372036854775808 AS BIGINT) END AS known_us
FROM held ORDER BY slot
