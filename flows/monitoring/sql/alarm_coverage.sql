-- The planner's one-step forecasts of a stretch, with the bounds of their 50 % and 80 % intervals; slot is the slot they speak of.
SELECT market, source, variable, epoch_us(issued_at) + step_seconds * 1000000 AS slot, q10, q25, q75, q90
FROM vintages JOIN forecasts USING (vid)
WHERE model = $planner AND step_seconds = $step_seconds AND step_ahead = 1 AND issued_at >= $first AND issued_at < $last
ORDER BY market, source, variable, slot
