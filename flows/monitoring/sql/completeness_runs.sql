-- What the ledger says of each slot and stage of a window: done if any run of that slot is done, else failed, with the reason.
-- left_out: the sentences (a JSON list) that the forecast run kept of markets and jobs it could not serve.
SELECT epoch_us(logical_at) AS slot, stage,
    CASE WHEN bool_or(status = 'done') THEN 'done' ELSE 'failed' END AS status,
    coalesce(any_value(json_extract_string(TRY_CAST(details AS JSON), '$.reason')) FILTER (WHERE status = 'failed'), '') AS reason,
    coalesce(any_value(CAST(json_extract(TRY_CAST(details AS JSON), '$.left_out') AS VARCHAR)) FILTER (WHERE status = 'done'), '[]') AS left_out
FROM runs WHERE logical_at >= $first AND logical_at <= $last
GROUP BY logical_at, stage ORDER BY slot, stage
