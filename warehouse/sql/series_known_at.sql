-- What series_known.sql tells, at each of several ascending times ($times_us), as prefixes of one pass after series_versions.sql.
-- Only for series of which every row was known at the first of the times at or after it was observed: see late_series.sql.
, prefix AS (
    SELECT sid, at_us,
        min(at_us) OVER past AS first_us,
        min(value) OVER past = max(value) OVER past AND coalesce(min(gap_us) OVER past > $repeat_us, TRUE) AS single,
        max(value) OVER past AS highest, value AS newest,
        last_value(on_demand_usd IGNORE NULLS) OVER past AS on_demand_usd,
        max(capacity) OVER past AS capacity,
        count(capacity) OVER past = count(*) OVER past AS capacity_stated,
        1000000 * least(last_value(gap_seconds IGNORE NULLS) OVER past, 31622400) AS stated_us
    FROM spaced
    WINDOW past AS (PARTITION BY sid ORDER BY at_us ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
),
times AS (SELECT unnest($times_us) AS time_us),
at_times AS (
    SELECT time_us, place, source, kind, product, prefix.*
    FROM (SELECT * FROM times CROSS JOIN chosen) AS wanted ASOF JOIN prefix ON wanted.sid = prefix.sid AND time_us >= at_us
),
medians AS (
    SELECT time_us, at_times.sid AS sid, median(gap_us) AS median_us
    FROM at_times JOIN spaced ON at_times.sid = spaced.sid AND spaced.at_us <= time_us
    WHERE stated_us IS NULL GROUP BY ALL
)
SELECT time_us, place, sid, source, kind, product, first_us, at_us AS latest_us, single, highest, newest, on_demand_usd, capacity,
    capacity_stated, coalesce(stated_us, median_us) AS nominal_us
FROM at_times LEFT JOIN medians USING (time_us, sid) ORDER BY time_us, place, kind, source, product
