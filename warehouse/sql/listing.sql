-- One row per market and source with what was observed of it, as far as known at $known_at (null: everything).
WITH prices AS (
    SELECT sid, count(*) AS n, min(observed_at) AS first_at, max(observed_at) AS last_at,
        arg_max(on_demand_usd, row(observed_at, known_at)) FILTER (WHERE on_demand_usd IS NOT NULL) AS on_demand_usd
    FROM price WHERE $known_at IS NULL OR known_at <= $known_at GROUP BY sid
),
counts AS (
    SELECT sid, count(*) AS n, min(observed_at) AS first_at, max(observed_at) AS last_at,
        max(capacity) AS capacity, count(capacity) = count(*) AS capacity_stated, max(available) AS largest,
        arg_max(gap_seconds, observed_at) FILTER (WHERE gap_seconds IS NOT NULL) AS gap_seconds,
        arg_max(kind, observed_at) FILTER (WHERE kind IS NOT NULL) AS kind
    FROM availability WHERE $known_at IS NULL OR known_at <= $known_at GROUP BY sid
)
SELECT concat_ws('/', provider, region, zone, instance_type) AS market, source,
    provider, region, zone, instance_type,
    coalesce(sum(prices.n), 0) > 0 AS has_price,
    -- A placement score (kind 'score') is no count of instances.
    coalesce(sum(counts.n) FILTER (WHERE counts.kind IS DISTINCT FROM 'score'), 0) > 0 AS has_counts,
    CAST(coalesce(sum(prices.n), 0) AS BIGINT) AS price_rows,
    CAST(coalesce(sum(counts.n), 0) AS BIGINT) AS count_rows,
    least(min(prices.first_at), min(counts.first_at)) AS first_observed,
    greatest(max(prices.last_at), max(counts.last_at)) AS last_observed,
    CASE WHEN bool_or(counts.capacity_stated) THEN max(counts.capacity) ELSE greatest(max(counts.largest), 1) END AS capacity,
    coalesce(bool_or(counts.capacity_stated), FALSE) AS capacity_stated,
    max(counts.gap_seconds) AS gap_seconds,
    max(counts.kind) AS kind,
    coalesce(string_agg(series.product, '; ' ORDER BY series.product) FILTER (WHERE prices.n > 0), '') AS products,
    max(prices.on_demand_usd) AS on_demand_usd
FROM series JOIN markets USING (mid) LEFT JOIN prices USING (sid) LEFT JOIN counts USING (sid)
WHERE prices.n > 0 OR counts.n > 0
GROUP BY provider, region, zone, instance_type, source
ORDER BY market, source
