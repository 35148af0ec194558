-- GPUs of the instances of a type, and the memory of each in GB, as rows of the source state them; null if none does (M1.2).
CREATE TABLE machines (
    provider VARCHAR NOT NULL,
    instance_type VARCHAR NOT NULL,
    gpus DOUBLE,
    gpu_memory DOUBLE
);
