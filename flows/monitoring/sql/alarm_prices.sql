-- Recent prices of each series beside its past: the largest recent change (of the logarithm) against the largest before it, and the
-- recent price that is highest against on-demand. Newest known versions; recent is after $recent_us.
WITH newest AS (
    SELECT sid, epoch_us(observed_at) AS at_us, arg_max(price_usd, known_at) AS value,
        arg_max(on_demand_usd, known_at) FILTER (WHERE on_demand_usd IS NOT NULL) AS on_demand_usd
    FROM price WHERE sid IN (SELECT unnest(CAST($sid AS INTEGER[]))) AND known_at <= $known_at GROUP BY sid, observed_at
),
steps AS (
    SELECT sid, at_us, value, lag(value) OVER w AS before,
        last_value(on_demand_usd IGNORE NULLS) OVER (w ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS on_demand_usd
    FROM newest WINDOW w AS (PARTITION BY sid ORDER BY at_us)
),
sized AS (
    SELECT *, CASE WHEN value > 0 AND before > 0 THEN abs(ln(value / before)) END AS size FROM steps
)
SELECT sid,
    max(size) FILTER (WHERE at_us > $recent_us) AS jump,
    arg_max(at_us, size) FILTER (WHERE at_us > $recent_us AND size > 0) AS jump_us,
    arg_max(before, size) FILTER (WHERE at_us > $recent_us AND size > 0) AS jump_from,
    arg_max(value, size) FILTER (WHERE at_us > $recent_us AND size > 0) AS jump_to,
    coalesce(max(size) FILTER (WHERE at_us <= $recent_us), 0) AS past_jump,
    count(*) FILTER (WHERE at_us <= $recent_us AND size > 0) AS past_changes,
    min(value) FILTER (WHERE at_us > $recent_us) AS lowest,
    max(value / on_demand_usd) FILTER (WHERE at_us > $recent_us) AS ratio,
    arg_max(value, value / on_demand_usd) FILTER (WHERE at_us > $recent_us) AS ratio_price,
    arg_max(on_demand_usd, value / on_demand_usd) FILTER (WHERE at_us > $recent_us) AS ratio_on_demand,
    min(at_us) FILTER (WHERE at_us > $recent_us AND value > $times * on_demand_usd) AS ratio_us
FROM sized GROUP BY sid ORDER BY sid
