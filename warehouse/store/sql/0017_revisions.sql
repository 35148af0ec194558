-- Decisions for the rest of a slot after a loss of spot (M12.15).
CREATE TABLE revisions (
    job VARCHAR NOT NULL,
    slot TIMESTAMPTZ NOT NULL,
    revised_at TIMESTAMPTZ NOT NULL,
    lost_at TIMESTAMPTZ NOT NULL,
    spot_left INTEGER NOT NULL,
    policy VARCHAR NOT NULL,
    market VARCHAR NOT NULL,
    on_demand INTEGER NOT NULL,
    spot INTEGER NOT NULL,
    reason VARCHAR,
    details VARCHAR
);
