-- Estimated forecasters (M6.4): what a predictor learned of one variable from a panel of series at its fit time, as text.
-- known_at: when the newest row it was estimated on became known; nothing overwrites a row.
CREATE TABLE fitted (
    predictor VARCHAR NOT NULL,
    variable VARCHAR NOT NULL CHECK (variable IN ('price', 'count')),
    panel VARCHAR NOT NULL,
    step_seconds BIGINT NOT NULL,
    fitted_at TIMESTAMPTZ NOT NULL,
    known_at TIMESTAMPTZ NOT NULL,
    state VARCHAR NOT NULL
);
