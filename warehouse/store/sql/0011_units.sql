-- The unit of work "gpu_hours" counts GPU-hours now (M2.1); until this step it counted the hours of an instance, which is
-- "instance_hours" now. What is stored keeps its meaning: the unit is renamed, but where every instance type that a job may run on
-- is known to have a single GPU, and both units are the same. An exported folder of an earlier step is brought up by the
-- statements of its tables when it is imported. The last statement says what was done.
UPDATE jobs SET spec = regexp_replace(spec, '("unit"\s*:\s*)"gpu_hours"', '\1"instance_hours"')
WHERE TRY_CAST(spec AS JSON) ->> '$.workload.unit' = 'gpu_hours' AND NOT coalesce(list_bool_and([
    regexp_matches(place, '^(gcp/[^/]*/[^/]*/(a3-highgpu-1g|a2-highgpu-1g|a2-ultragpu-1g|n1-standard-8\+v100x1)|aws/[^/]*/[^/]*/(p3\.2xlarge|p5\.4xlarge|g6e\.xlarge)|simulated/[^/]*/[^/]*/(h100|a100|v100)|(primeintellect|vast\.ai)/[^/]*/[^/]*/(A100_80GB_SXM4|A100_80GB_PCIe|H100_80GB_PCIe|A100_SXM_80GB|A100_PCIE_80GB|H100_SXM|L40S)_x1)(@.*)?$')
    FOR place IN list_append(coalesce(TRY_CAST(TRY_CAST(spec AS JSON) -> '$.markets' AS VARCHAR[]), []), TRY_CAST(spec AS JSON) ->> '$.market')
    IF place IS NOT NULL
]), false);

UPDATE terms SET spec = regexp_replace(spec, '("unit"\s*:\s*)"gpu_hours"', '\1"instance_hours"')
WHERE TRY_CAST(spec AS JSON) ->> '$.workload.unit' = 'gpu_hours' AND NOT coalesce(list_bool_and([
    regexp_matches(place, '^(gcp/[^/]*/[^/]*/(a3-highgpu-1g|a2-highgpu-1g|a2-ultragpu-1g|n1-standard-8\+v100x1)|aws/[^/]*/[^/]*/(p3\.2xlarge|p5\.4xlarge|g6e\.xlarge)|simulated/[^/]*/[^/]*/(h100|a100|v100)|(primeintellect|vast\.ai)/[^/]*/[^/]*/(A100_80GB_SXM4|A100_80GB_PCIe|H100_80GB_PCIe|A100_SXM_80GB|A100_PCIE_80GB|H100_SXM|L40S)_x1)(@.*)?$')
    FOR place IN list_append(coalesce(TRY_CAST(TRY_CAST(spec AS JSON) -> '$.markets' AS VARCHAR[]), []), TRY_CAST(spec AS JSON) ->> '$.market')
    IF place IS NOT NULL
]), false);

UPDATE decisions SET details = regexp_replace(details, '("workload_unit"\s*:\s*)"gpu_hours"', '\1"instance_hours"')
WHERE TRY_CAST(details AS JSON) ->> '$.workload_unit' = 'gpu_hours'
AND NOT coalesce(regexp_matches(TRY_CAST(details AS JSON) ->> '$.market', '^(gcp/[^/]*/[^/]*/(a3-highgpu-1g|a2-highgpu-1g|a2-ultragpu-1g|n1-standard-8\+v100x1)|aws/[^/]*/[^/]*/(p3\.2xlarge|p5\.4xlarge|g6e\.xlarge)|simulated/[^/]*/[^/]*/(h100|a100|v100)|(primeintellect|vast\.ai)/[^/]*/[^/]*/(A100_80GB_SXM4|A100_80GB_PCIe|H100_80GB_PCIe|A100_SXM_80GB|A100_PCIE_80GB|H100_SXM|L40S)_x1)(@.*)?$'), false);

SELECT 'work in "gpu_hours" counted the hours of instances and counts GPU-hours now: ' || count(*) || CASE WHEN count(*) = 1
    THEN ' stored job keeps its meaning' ELSE ' stored jobs keep their meaning' END || ' as "instance_hours" ('
    || array_to_string(list(name ORDER BY name)[:5], ', ') || CASE WHEN count(*) > 5 THEN ', ...' ELSE '' END
    || '); a job file that is added again needs that unit' AS said
FROM jobs WHERE TRY_CAST(spec AS JSON) ->> '$.workload.unit' = 'instance_hours' HAVING count(*) > 0;
