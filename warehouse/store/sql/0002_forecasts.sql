-- What was issued (M6.1): one vintage per market, source, model, issue time and step; nothing overwrites it.
CREATE TABLE vintages (
    vid INTEGER NOT NULL,
    market VARCHAR NOT NULL,
    source VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    issued_at TIMESTAMPTZ NOT NULL,
    step_seconds BIGINT NOT NULL,
    newest_row TIMESTAMPTZ NOT NULL,
    horizon INTEGER NOT NULL,
    capacity INTEGER NOT NULL,
    price_fallback VARCHAR NOT NULL,
    count_fallback VARCHAR NOT NULL,
    backfilled BOOLEAN NOT NULL
);

CREATE TABLE forecasts (
    vid INTEGER NOT NULL,
    variable VARCHAR NOT NULL CHECK (variable IN ('price', 'count')),
    step_ahead INTEGER NOT NULL,
    mean DOUBLE NOT NULL,
    q05 DOUBLE NOT NULL, q10 DOUBLE NOT NULL, q15 DOUBLE NOT NULL, q20 DOUBLE NOT NULL, q25 DOUBLE NOT NULL,
    q30 DOUBLE NOT NULL, q35 DOUBLE NOT NULL, q40 DOUBLE NOT NULL, q45 DOUBLE NOT NULL, q50 DOUBLE NOT NULL,
    q55 DOUBLE NOT NULL, q60 DOUBLE NOT NULL, q65 DOUBLE NOT NULL, q70 DOUBLE NOT NULL, q75 DOUBLE NOT NULL,
    q80 DOUBLE NOT NULL, q85 DOUBLE NOT NULL, q90 DOUBLE NOT NULL, q95 DOUBLE NOT NULL
);

-- Errors of forecasts as measured at a logical time (M6.5); "more" is JSON for what has no column.
CREATE TABLE accuracy (
    measured_at TIMESTAMPTZ NOT NULL,
    market VARCHAR NOT NULL,
    source VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    variable VARCHAR NOT NULL,
    step INTEGER NOT NULL,
    n BIGINT,
    mae DOUBLE,
    rmse DOUBLE,
    mase DOUBLE,
    pinball DOUBLE,
    skill_mae DOUBLE,
    skill_pinball DOUBLE,
    coverage_80 DOUBLE,
    width_80 DOUBLE,
    brier DOUBLE,
    absent DOUBLE,
    unpredicted DOUBLE,
    fallback_share DOUBLE,
    more VARCHAR
);
