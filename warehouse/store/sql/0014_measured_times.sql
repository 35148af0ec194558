-- Times of instances that an owner measured, in minutes; null if not reported.
ALTER TABLE reports ADD COLUMN boot_minutes DOUBLE;
ALTER TABLE reports ADD COLUMN restart_minutes DOUBLE;
ALTER TABLE reports ADD COLUMN on_demand_wait_minutes DOUBLE;
