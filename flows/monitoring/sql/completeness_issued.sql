-- The forecasts issued for each market and slot of a window, one row of (market, source, slot): whether the planner's is there, what it
-- knew, and which models let a simpler one answer. Times in microseconds since the epoch.
SELECT market, source, epoch_us(issued_at) AS slot,
    bool_or(model = $planner) AS planned,
    string_agg(model, ', ' ORDER BY model) AS models,
    min(epoch_us(newest_row)) FILTER (WHERE model = $planner) AS newest_us,
    coalesce(max(price_fallback) FILTER (WHERE model = $planner), '') AS price_fallback,
    coalesce(max(count_fallback) FILTER (WHERE model = $planner), '') AS count_fallback,
    coalesce(string_agg(model, ', ' ORDER BY model)
        FILTER (WHERE model <> $planner AND (price_fallback <> '' OR count_fallback <> '')), '') AS others_fell_back,
    coalesce(bool_or(backfilled) FILTER (WHERE model = $planner), FALSE) AS backfilled
FROM vintages
WHERE step_seconds = $step_seconds AND issued_at >= $first AND issued_at <= $last
GROUP BY market, source, issued_at ORDER BY market, source, slot
