-- Series with a row that was learned after a time of the grid at or after it was observed: at that time they looked otherwise.
-- The grid begins at $first_us, one time every $step_us, the last at $last_us.
SELECT DISTINCT sid FROM (
    SELECT sid, epoch_us(observed_at) AS at_us, epoch_us(known_at) AS known_us FROM price
    UNION ALL
    SELECT sid, epoch_us(observed_at), epoch_us(known_at) FROM availability
)
WHERE known_us < at_us
    OR (
        known_us > $first_us AND at_us <= $last_us
        AND known_us > $first_us + $step_us * greatest(0, (at_us - $first_us + $step_us - 1) // $step_us)
    )
