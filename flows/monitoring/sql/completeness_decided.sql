-- Where some jobs were told to be until a window's end, by slot; market and source are empty in decisions that do not say them.
SELECT job, epoch_us(slot) AS slot, coalesce(json_extract_string(TRY_CAST(details AS JSON), '$.market'), '') AS market,
    coalesce(json_extract_string(TRY_CAST(details AS JSON), '$.source'), '') AS source
FROM decisions WHERE slot <= $last AND job IN (SELECT unnest($jobs)) ORDER BY slot, job
