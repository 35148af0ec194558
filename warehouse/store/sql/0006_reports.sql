-- What users say of their jobs (M2.4): work done up to reported_at and instances held there, known from known_at on (M1.2).
-- progress is in the unit of the job's own workload. A correction is a new row: of one reported_at the row with the newest
-- known_at counts, and of equal ones that with the highest revision.
CREATE TABLE reports (
    job VARCHAR NOT NULL,
    reported_at TIMESTAMPTZ NOT NULL,
    known_at TIMESTAMPTZ NOT NULL,
    revision INTEGER NOT NULL,
    progress DOUBLE,
    on_demand INTEGER,
    spot INTEGER,
    finished BOOLEAN NOT NULL,
    note VARCHAR NOT NULL
);

-- What became of each decision at each webhook or file drop: 'sent', 'failed' (tried again in the next turn) or 'given up'.
-- logical_at is the turn of the last attempt, reason is empty once it is sent.
CREATE TABLE deliveries (
    sink VARCHAR NOT NULL,
    job VARCHAR NOT NULL,
    slot TIMESTAMPTZ NOT NULL,
    status VARCHAR NOT NULL,
    attempts INTEGER NOT NULL,
    logical_at TIMESTAMPTZ NOT NULL,
    reason VARCHAR NOT NULL
);
