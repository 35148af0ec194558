-- What users say of their jobs (M2.4): work done and instances held up to the slot that starts at reported_at, known from known_at on.
CREATE TABLE reports (
    job VARCHAR NOT NULL,
    reported_at TIMESTAMPTZ NOT NULL,
    known_at TIMESTAMPTZ NOT NULL,
    progress DOUBLE,
    on_demand INTEGER,
    spot INTEGER,
    finished BOOLEAN NOT NULL,
    note VARCHAR NOT NULL
);

-- Decisions handed to a webhook or a file drop, once each.
CREATE TABLE deliveries (
    sink VARCHAR NOT NULL,
    job VARCHAR NOT NULL,
    slot TIMESTAMPTZ NOT NULL,
    status VARCHAR NOT NULL,
    attempts INTEGER NOT NULL,
    reason VARCHAR NOT NULL
);
