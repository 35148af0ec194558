-- The newest known versions of every series of some markets as known at $known_at, and the time since the one before (gap_us).
-- Times in microseconds since the epoch. Markets and their last slots are lists of one length; place tells which market a row is of.
-- A rating of the provider (kind 'score' or 'band') is no count of instances: it never answers as one.
WITH asked AS (
    SELECT unnest($provider) AS provider, unnest($region) AS region, unnest($zone) AS zone,
        unnest($instance_type) AS instance_type, unnest($last_us) AS last_us, unnest(range(len($provider))) AS place
),
chosen AS (
    SELECT place, last_us, sid, source, kind, product
    FROM series JOIN markets USING (mid) JOIN asked USING (provider, region, zone, instance_type)
),
versions AS (
    SELECT sid, observed_at, known_at, price_usd AS value, on_demand_usd, NULL AS capacity, NULL AS gap_seconds,
        NULL AS form, FALSE AS truncated FROM price
    WHERE sid IN (SELECT sid FROM chosen WHERE kind = 'price') AND known_at <= $known_at
    UNION ALL
    SELECT sid, observed_at, known_at, available, NULL, capacity, gap_seconds, kind, coalesce(truncated, FALSE) FROM availability
    WHERE sid IN (SELECT sid FROM chosen WHERE kind = 'availability') AND known_at <= $known_at
        AND coalesce(kind, '') NOT IN ('score', 'band')
),
newest AS (
    SELECT sid, epoch_us(observed_at) AS at_us, arg_max(value, known_at) AS value,
        arg_max(on_demand_usd, known_at) FILTER (WHERE on_demand_usd IS NOT NULL) AS on_demand_usd,
        arg_max(capacity, known_at) FILTER (WHERE capacity IS NOT NULL) AS capacity,
        -- Capped where it is stated: of a null, least() would be the cap.
        arg_max(least(gap_seconds, 31622400), known_at) FILTER (WHERE gap_seconds IS NOT NULL) AS gap_seconds,
        arg_max(form, known_at) FILTER (WHERE form IS NOT NULL) AS form, arg_max(truncated, known_at) AS truncated
    FROM versions GROUP BY sid, observed_at
),
spaced AS (SELECT *, at_us - lag(at_us) OVER (PARTITION BY sid ORDER BY at_us) AS gap_us FROM newest)
