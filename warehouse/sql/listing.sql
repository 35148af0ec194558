-- One row per time, market and source with what was observed of it, as far as known at the time. The times begin at $first_us, one
-- every $step_us, the last at $last_us (microseconds since the epoch). Rows are summed up by the first time they were known at, so
-- that many times cost hardly more than one.
WITH times AS (SELECT unnest(range(0, ($last_us - $first_us) // $step_us + 1)) AS place),
price_parts AS (
    SELECT sid, greatest(0, (epoch_us(known_at) - $first_us + $step_us - 1) // $step_us) AS since, count(*) AS n,
        min(observed_at) AS first_at, max(observed_at) AS last_at,
        max(row(observed_at, known_at, on_demand_usd)) FILTER (WHERE on_demand_usd IS NOT NULL) AS on_demand
    FROM price WHERE epoch_us(known_at) <= $last_us GROUP BY ALL
),
prices AS (
    SELECT place, sid, sum(n) AS n, min(first_at) AS first_at, max(last_at) AS last_at, max(on_demand)[3] AS on_demand_usd
    FROM price_parts JOIN times ON since <= place GROUP BY ALL
),
count_parts AS (
    SELECT sid, greatest(0, (epoch_us(known_at) - $first_us + $step_us - 1) // $step_us) AS since, count(*) AS n,
        -- A rating of the provider (kind 'score' or 'band') is no count of instances.
        count(*) FILTER (WHERE coalesce(kind, '') NOT IN ('score', 'band')) AS launches,
        min(observed_at) AS first_at, max(observed_at) AS last_at, max(capacity) AS capacity, count(capacity) AS stated,
        max(available) AS largest,
        max(row(observed_at, known_at, gap_seconds)) FILTER (WHERE gap_seconds IS NOT NULL) AS gap,
        max(row(observed_at, known_at, kind)) FILTER (WHERE kind IS NOT NULL) AS kind
    FROM availability WHERE epoch_us(known_at) <= $last_us GROUP BY ALL
),
counts AS (
    SELECT place, sid, sum(n) AS n, sum(launches) AS launches,
        min(first_at) AS first_at, max(last_at) AS last_at, max(capacity) AS capacity, sum(stated) = sum(n) AS capacity_stated, max(largest) AS largest,
        max(gap)[3] AS gap_seconds, max(kind)[3] AS kind
    FROM count_parts JOIN times ON since <= place GROUP BY ALL
),
-- The nominal gap of a series that states none: the median distance of its counts in the last 8 days of its record, in whole minutes
-- (M1.3). Clocks that wait between two readings are some seconds late.
unstated AS (
    SELECT sid, coalesce(max(last_at) FILTER (WHERE since = 0), min(first_at)) - INTERVAL 16 DAYS AS start
    FROM count_parts GROUP BY sid HAVING count(gap) = 0
),
spaced AS (
    SELECT sid, read_at, epoch(read_at) - epoch(lag(read_at) OVER past) AS apart, greatest(known, lag(known) OVER past) AS known
    FROM (
        SELECT sid, observed_at AS read_at, min(known_at) AS known
        FROM availability JOIN unstated USING (sid) WHERE observed_at >= start AND epoch_us(known_at) <= $last_us GROUP BY ALL
    ) WINDOW past AS (PARTITION BY sid ORDER BY read_at)
),
medians AS (
    SELECT sid, read_at, greatest(0, (epoch_us(known) - $first_us + $step_us - 1) // $step_us) AS since,
        60 * round(median(apart) FILTER (WHERE apart <= 8 * 86400) OVER (PARTITION BY sid ORDER BY read_at RANGE BETWEEN INTERVAL 8 DAYS PRECEDING AND CURRENT ROW) / 60) AS gap
    FROM spaced
),
measured AS (SELECT place, sid, arg_max(gap, read_at) AS gap FROM medians JOIN times ON since <= place GROUP BY ALL)
SELECT place, concat_ws('/', provider, region, zone, instance_type) AS market, source,
    provider, region, zone, instance_type,
    -- The price series that answers for a market and source: of the product that is planned on (M1.1, warehouse/catalogue.py).
    coalesce(min(rank) FILTER (WHERE prices.n > 0) < {unknown_rank} OR count(rank) FILTER (WHERE prices.n > 0) = 1, FALSE) AS has_price,
    coalesce(sum(counts.launches), 0) > 0 AS has_counts,
    CAST(coalesce(sum(prices.n), 0) AS BIGINT) AS price_rows,
    CAST(coalesce(sum(counts.n), 0) AS BIGINT) AS count_rows,
    least(min(prices.first_at), min(counts.first_at)) AS first_observed,
    greatest(max(prices.last_at), max(counts.last_at)) AS last_observed,
    min(counts.first_at) FILTER (WHERE counts.launches > 0) AS first_counted,
    max(counts.last_at) FILTER (WHERE counts.launches > 0) AS last_counted,
    max(prices.last_at) AS last_priced,
    CASE WHEN bool_or(counts.capacity_stated) THEN max(counts.capacity) ELSE greatest(max(counts.largest), 1) END AS capacity,
    coalesce(bool_or(counts.capacity_stated), FALSE) AS capacity_stated,
    -- A gap that is not known stays so: least() would leave the null out.
    if(max(coalesce(counts.gap_seconds, gap)) > 31622400, 31622400, max(coalesce(counts.gap_seconds, gap))) AS gap_seconds,
    max(counts.kind) AS kind,
    coalesce(string_agg(series.product, '; ' ORDER BY series.product) FILTER (WHERE prices.n > 0), '') AS products,
    if(has_price, arg_min_null(prices.on_demand_usd, rank) FILTER (WHERE prices.n > 0), NULL) AS on_demand_usd
FROM times CROSS JOIN (SELECT *, {product_rank} AS rank FROM series) AS series JOIN markets USING (mid)
    LEFT JOIN prices USING (place, sid) LEFT JOIN counts USING (place, sid) LEFT JOIN measured USING (place, sid)
WHERE prices.n > 0 OR counts.n > 0
GROUP BY place, provider, region, zone, instance_type, source
ORDER BY place, market, source
