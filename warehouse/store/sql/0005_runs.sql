-- How a stage of a run was made: 'live' in its own slot, or 'backfill' afterwards.
ALTER TABLE runs ADD COLUMN made VARCHAR DEFAULT 'live';
