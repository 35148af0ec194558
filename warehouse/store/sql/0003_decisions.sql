-- Jobs, what was decided for them, how every policy came out, and what the selection made of it (M2, M5).
CREATE TABLE jobs (
    name VARCHAR NOT NULL,
    market VARCHAR NOT NULL,
    source VARCHAR NOT NULL,
    spec VARCHAR NOT NULL,
    origin VARCHAR NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    start_at TIMESTAMPTZ NOT NULL,
    deadline_at TIMESTAMPTZ NOT NULL,
    step_seconds BIGINT NOT NULL
);

CREATE TABLE decisions (
    job VARCHAR NOT NULL,
    slot TIMESTAMPTZ NOT NULL,
    run VARCHAR,
    policy VARCHAR NOT NULL,
    on_demand INTEGER NOT NULL,
    spot INTEGER NOT NULL,
    reason VARCHAR,
    details VARCHAR
);

CREATE TABLE outcomes (
    job VARCHAR NOT NULL,
    policy VARCHAR NOT NULL,
    scored_at TIMESTAMPTZ NOT NULL,
    utility_usd DOUBLE NOT NULL,
    value_usd DOUBLE,
    cost_usd DOUBLE NOT NULL,
    termination_cost_usd DOUBLE,
    on_time BOOLEAN NOT NULL,
    finished_slot INTEGER,
    finish_slots INTEGER,
    spot_share DOUBLE,
    progress DOUBLE,
    utility_normalised DOUBLE,
    perfect_utility_usd DOUBLE,
    hindsight_low_usd DOUBLE,
    hindsight_high_usd DOUBLE,
    allocations VARCHAR,
    details VARCHAR
);

CREATE TABLE weights (
    round INTEGER NOT NULL,
    job VARCHAR NOT NULL,
    policy VARCHAR NOT NULL,
    scored_at TIMESTAMPTZ,
    utility DOUBLE NOT NULL,
    log_weight DOUBLE NOT NULL
);

CREATE TABLE runs (
    run VARCHAR NOT NULL,
    logical_at TIMESTAMPTZ NOT NULL,
    stage VARCHAR NOT NULL,
    status VARCHAR NOT NULL,
    details VARCHAR
);
