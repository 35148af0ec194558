"""Write ``warehouse/data/catalogue.csv``: GPUs and list prices of instance types, from the shared table and the rows below.

Run as ``SLACKWATER_DATA=... python -m benchmarks.build_catalogue``; the same data give the same file, byte by byte. The table is
``$SLACKWATER_DATA/catalog/gpu_instances.csv``. Regions with the same terms share a row. `EXTRA` contains rows that are missing
there: marketplaces, older types, prices before a price cut, and types that are not sold on demand.
"""

from __future__ import annotations

import csv
import io
import os
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "warehouse" / "data" / "catalogue.csv"
COLUMNS = (
    "provider", "instance_type", "gpu_model", "gpus", "gpu_memory_gib", "regions", "on_demand_usd", "valid_from", "source",
    "source_date",
)  # fmt: skip
#: Price entry of a type that the provider does not sell on demand.
NOT_SOLD = "not sold"

#: GPU names as in the measured fine-tuning runs (``forecasting/data/gpus.toml``), else in the same form.
NAMES = {
    "A10": "NVIDIA-A10", "A100": "NVIDIA-A100-SXM4-40GB", "A100-80GB": "NVIDIA-A100-SXM4-80GB",
    "A100-80GB-SXM": "NVIDIA-A100-SXM4-80GB", "A10G": "NVIDIA-A10G", "A6000": "NVIDIA-RTX-A6000", "B200": "NVIDIA-B200",
    "B300": "NVIDIA-B300", "GH200": "NVIDIA-GH200-96GB", "H100": "NVIDIA-H100-SXM5-80GB", "H100-MEGA": "NVIDIA-H100-SXM5-80GB",
    "H100-SXM": "NVIDIA-H100-SXM5-80GB", "H200": "NVIDIA-H200-SXM-141GB", "H200-SXM": "NVIDIA-H200-SXM-141GB",
    "L4": "NVIDIA-L4", "L40": "NVIDIA-L40", "L40S": "L40S", "RTX6000": "Quadro-RTX-6000", "RTXPRO6000": "NVIDIA-RTX-PRO-6000",
    "T4": "Tesla-T4", "V100": "Tesla-V100-SXM2-16GB", "V100-32GB": "Tesla-V100-SXM2-32GB",
}  # fmt: skip
#: Names that mean another card with some providers: (provider, prefix of the type, name) -> GPU.
PCIE = {
    ("azure", "Standard_NC", "A100-80GB"): "NVIDIA-A100-80GB-PCIe",
    ("azure", "Standard_NC", "H100"): "NVIDIA-H100-NVL",
    ("azure", "Standard_NC", "V100"): "Tesla-V100-PCIE-16GB",
    ("lambda", "gpu_1x_a100", "A100"): "NVIDIA-A100-40GB-PCIe",
    ("lambda", "gpu_2x_a100", "A100"): "NVIDIA-A100-40GB-PCIe",
    ("lambda", "gpu_4x_a100", "A100"): "NVIDIA-A100-40GB-PCIe",
    ("lambda", "gpu_1x_h100_pcie", "H100"): "NVIDIA-H100-PCIe",
    ("runpod", "", "A100-80GB"): "NVIDIA-A100-80GB-PCIe",
    ("runpod", "", "H100"): "NVIDIA-H100-PCIe",
}
SXM = {("lambda", "gpu_1x_a100_sxm4"): "NVIDIA-A100-SXM4-40GB"}

#: Start of validity of a price after a price cut: AWS cut P4 and P5 on 1 June 2025.
CUT = "2025-06-01"
CUT_TYPES = {("aws", one) for one in ("p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5en.48xlarge")}
#: Types available only as Spot or flex-start machines (Compute Engine documentation of GPU machine types).
SPOT_ONLY = {("gcp", one) for one in ("a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g")}
SPOT_ONLY_SOURCE = "Compute Engine documentation: only as Spot or flex-start"
#: Dates of sources that state no date.
DATES = {"catalogs/v9/": "2026"}
SHORT = {
    "skypilot-org/skypilot-catalog:": "skypilot-catalog ",
    "Cyclenerd/google-cloud-pricing-cost-calculator:": "Cyclenerd gcp ",
}

_LUCIANA = "LucianaMarques/amazon-spot-dataset us-east-1,2021-05-30"
_LAMBDA = "tugot17/gpu-price-tracker: offer of Lambda in the marketplace"
_SPEC = "specification of the provider"
#: Columns as in the file. ``<type>_x*``: a marketplace machine with N GPUs; GPUs and price are per GPU.
EXTRA = f"""
aws,p4d.24xlarge,NVIDIA-A100-SXM4-40GB,8,40,us-east-1,32.7726,2020-11-02,AWS list price until the cut of June 2025,2025
aws,p5.48xlarge,NVIDIA-H100-SXM5-80GB,8,80,us-east-1,98.32,2023-07-26,AWS list price until the cut of June 2025,2025
aws,c3.xlarge,,,,us-east-1,0.21,,prateek-s/spot-price-model us-east-1,2015-08-31
aws,cg1.4xlarge,Tesla-M2050,2,3,us-east-1,2.1,,hshazly/Amazon-Spot-Price-Estimator us-east-1,2016-04-24
aws,d2.8xlarge,,,,us-east-1,5.52,,prateek-s/spot-price-model us-east-1,2015-08-31
aws,f1.16xlarge,,,,us-east-1,13.2,,{_LUCIANA}
aws,f1.2xlarge,,,,us-east-1,1.65,,{_LUCIANA}
aws,f1.4xlarge,,,,us-east-1,3.3,,{_LUCIANA}
aws,g2.2xlarge,GRID-K520,1,4,us-east-1,0.65,,{_LUCIANA}
aws,g2.8xlarge,GRID-K520,4,4,us-east-1,2.6,,{_LUCIANA}
aws,g3.16xlarge,Tesla-M60,4,8,us-east-1,4.56,,{_LUCIANA}
aws,g3.4xlarge,Tesla-M60,1,8,us-east-1,1.14,,{_LUCIANA}
aws,g3.8xlarge,Tesla-M60,2,8,us-east-1,2.28,,{_LUCIANA}
aws,g3s.xlarge,Tesla-M60,1,8,us-east-1,0.75,,{_LUCIANA}
aws,m3.medium,,,,us-east-1,0.067,,prateek-s/spot-price-model us-east-1,2015-08-31
aws,p2.16xlarge,Tesla-K80,16,12,us-east-1,14.4,,{_LUCIANA}
aws,p2.8xlarge,Tesla-K80,8,12,us-east-1,7.2,,{_LUCIANA}
aws,p2.xlarge,Tesla-K80,1,12,us-east-1,0.9,,{_LUCIANA}
aws,r3.large,,,,us-east-1,0.175,,prateek-s/spot-price-model us-east-1,2015-08-31
aws,r5.16xlarge,,,,us-east-1,4.032,,skypilot-org/spot-traces aws-04-19-2023 us-east-1,2023-04-25
gcp,n1-standard-8+v100x1,Tesla-V100-SXM2-16GB,1,16,*,,,{_SPEC},2026-11-22
primeintellect,A100_80GB_SXM4,,,,*,1.79,,{_LAMBDA},2025-10-19
primeintellect,A100_80GB_SXM4_x*,NVIDIA-A100-SXM4-80GB,1,80,*,1.79,,{_LAMBDA},2025-10-19
primeintellect,A100_80GB_PCIe_x*,NVIDIA-A100-80GB-PCIe,1,80,*,,,{_SPEC},2026-11-22
primeintellect,B200_180GB,,,,*,4.99,,{_LAMBDA},2025-10-20
primeintellect,B200_180GB_x*,NVIDIA-B200,1,180,*,4.99,,{_LAMBDA},2025-10-20
primeintellect,GH200_96GB,,,,*,1.49,,{_LAMBDA},2025-10-19
primeintellect,GH200_96GB_x*,NVIDIA-GH200-96GB,1,96,*,1.49,,{_LAMBDA},2025-10-19
primeintellect,H100_80GB_PCIe,,,,*,2.49,,{_LAMBDA},2025-10-19
primeintellect,H100_80GB_PCIe_x*,NVIDIA-H100-PCIe,1,80,*,2.49,,{_LAMBDA},2025-10-19
vast.ai,A100_SXM_80GB_x*,NVIDIA-A100-SXM4-80GB,1,80,*,,,{_SPEC},2026-11-22
vast.ai,A100_PCIE_80GB_x*,NVIDIA-A100-80GB-PCIe,1,80,*,,,{_SPEC},2026-11-22
vast.ai,H100_SXM_x*,NVIDIA-H100-SXM5-80GB,1,80,*,,,{_SPEC},2026-11-22
vast.ai,L40S_x*,L40S,1,48,*,,,{_SPEC},2026-11-22
vast.ai,A100_SXM4_40GB_x*,NVIDIA-A100-SXM4-40GB,1,40,*,,,{_SPEC},2026-11-26
vast.ai,A100_SXM4_80GB_x*,NVIDIA-A100-SXM4-80GB,1,80,*,,,{_SPEC},2026-11-26
vast.ai,A100_PCIE_40GB_x*,NVIDIA-A100-40GB-PCIe,1,40,*,,,{_SPEC},2026-11-26
vast.ai,B200_180GB_x*,NVIDIA-B200,1,180,*,,,{_SPEC},2026-11-26
vast.ai,H100_NVL_94GB_x*,NVIDIA-H100-NVL,1,94,*,,,{_SPEC},2026-11-26
vast.ai,H100_PCIE_80GB_x*,NVIDIA-H100-PCIe,1,80,*,,,{_SPEC},2026-11-26
vast.ai,H100_SXM_80GB_x*,NVIDIA-H100-SXM5-80GB,1,80,*,,,{_SPEC},2026-11-26
vast.ai,H200_141GB_x*,NVIDIA-H200-SXM-141GB,1,141,*,,,{_SPEC},2026-11-26
vast.ai,L4_24GB_x*,NVIDIA-L4,1,24,*,,,{_SPEC},2026-11-26
vast.ai,L40_48GB_x*,NVIDIA-L40,1,48,*,,,{_SPEC},2026-11-26
vast.ai,L40S_48GB_x*,L40S,1,48,*,,,{_SPEC},2026-11-26
vast.ai,RTX_A6000_48GB_x*,NVIDIA-RTX-A6000,1,48,*,,,{_SPEC},2026-11-26
simulated,h100,NVIDIA-H100-SXM5-80GB,1,80,*,,,simulated market,2026-11-22
simulated,a100,NVIDIA-A100-SXM4-80GB,1,80,*,,,simulated market,2026-11-22
simulated,v100,Tesla-V100-SXM2-16GB,1,16,*,,,simulated market,2026-11-22
"""


def gpu_model(provider: str, instance_type: str, name: str) -> str:
    """Return the name of a GPU in the measured runs."""
    if (provider, instance_type) in SXM:
        return SXM[provider, instance_type]
    for (own, begins, short), full in PCIE.items():
        if own == provider and instance_type.startswith(begins) and short == name:
            return full
    return NAMES[name]


def rows(table: Path) -> list[tuple[str, ...]]:
    """Return the rows of the shared table, with regions of the same terms merged, and `EXTRA`."""
    regions: dict[tuple[str, ...], list[str]] = defaultdict(list)
    with table.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            key = row["provider"], row["instance_type"]
            source, usd = row["source_file"], row["on_demand_usd_per_hour"]
            date = row["source_date"] or next((known for part, known in DATES.items() if part in source), "")
            for long, short in SHORT.items():
                source = source.replace(long, short)
            source = f"{source}@{row['source_commit'][:8]}"
            if key in SPOT_ONLY:
                usd, source, date = NOT_SOLD, SPOT_ONLY_SOURCE, "2026-11-25"
            terms = (
                *key,
                gpu_model(*key, row["gpu_model"]),
                row["gpus"],
                row["gpu_memory_gib"],
                usd,
                CUT if usd and key in CUT_TYPES else "",
                source,
                date,
            )
            regions[terms].append(row["region"])
    found = [(*terms[:5], " ".join(sorted(own)), *terms[5:]) for terms, own in regions.items()]
    extra = [tuple(one) for one in csv.reader(io.StringIO(EXTRA.strip()))]
    return sorted(found + extra, key=lambda one: (one[0], one[1], one[5], one[7]))


def main() -> None:
    """Write the file."""
    data = os.environ.get("SLACKWATER_DATA")
    if not data:
        raise SystemExit("set SLACKWATER_DATA to the folder that holds catalog/gpu_instances.csv")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows(Path(data) / "catalog" / "gpu_instances.csv"))
    TARGET.write_text(text.getvalue(), encoding="utf-8")
    print(f"{TARGET.relative_to(ROOT)}: {text.getvalue().count(chr(10)) - 1} rows")


if __name__ == "__main__":
    main()
