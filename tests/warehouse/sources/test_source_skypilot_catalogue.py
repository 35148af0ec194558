import pytest
from source_files import options, read, write

from slackwater.warehouse.errors import SourceFileError
from slackwater.warehouse.observations import ingest
from slackwater.warehouse.sources.files.skypilot_catalogue import SkyPilotCatalogue
from slackwater.warehouse.store.connection import open_store

HEAD = "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Price,SpotPrice,Region,AvailabilityZone\n"
LINE = "p4d.24xlarge,96,1152,A100,8.0,,21.957642,9.83,us-east-1,us-east-1a\n"
AT = {"observed_at": "2026-07-30T12:00Z"}


def test_a_line_is_the_spot_price_with_its_on_demand_price_at_the_stated_time(tmp_path):
    path = write(tmp_path / "aws" / "vms.csv", HEAD + LINE + LINE.replace("us-east-1a", ""))
    rows = read(SkyPilotCatalogue(), path, **AT)["price"]
    assert rows["zone"].tolist() == ["us-east-1a", "all"]
    row = rows.iloc[0]
    assert (row["provider"], row["region"], row["product"]) == ("aws", "us-east-1", "Linux/UNIX")
    assert (row["price_usd"], row["on_demand_usd"], f"{row['observed_at']:%F %H:%M}") == (
        "9.83",
        "21.957642",
        "2026-07-30 12:00",
    )
    assert SkyPilotCatalogue().assumptions(path, options(**AT)) == (
        "catalogue taken as true at 2026-07-30T12:00:00+00:00",
    )


def test_a_catalogue_without_time_or_provider_is_refused_with_the_option(tmp_path):
    with pytest.raises(SourceFileError, match=r"no time in the catalogue.*--at"):
        read(SkyPilotCatalogue(), write(tmp_path / "aws" / "vms.csv", HEAD + LINE))
    with pytest.raises(SourceFileError, match=r"no provider in the catalogue.*--set provider=aws"):
        read(SkyPilotCatalogue(), write(tmp_path / "vms.csv", HEAD + LINE), **AT)
    dated = write(tmp_path / "2026-07-30" / "aws" / "vms.csv", HEAD + LINE)
    assert len(read(SkyPilotCatalogue(), dated)["price"]) == 1


@pytest.mark.parametrize("name", ["do/prices_2026-07-30.csv", "do/not/vms.csv", "what_to_do_2026-07-30.csv"])
def test_a_common_word_names_no_provider(tmp_path, name):
    with pytest.raises(SourceFileError, match="no provider in the catalogue"):
        read(SkyPilotCatalogue(), write(tmp_path / name, HEAD + LINE), **AT)


def test_a_line_of_another_provider_than_the_folder_is_refused_with_the_option(tmp_path):
    for folder in ("do", "vast", "gcp-and-lambda"):
        path = write(tmp_path / folder / ("vms.csv" if folder == "do" else "lambda.csv"), HEAD + LINE)
        with pytest.raises(SourceFileError, match=r"p4d.24xlarge in us-east-1a.*--set provider=aws"):
            read(SkyPilotCatalogue(), path, **AT)
        assert read(SkyPilotCatalogue(), path, provider="aws", **AT)["price"]["provider"].tolist() == ["aws"]


def test_digitalocean_has_one_name(tmp_path):
    line = LINE.replace("p4d.24xlarge", "gpu-h100x1-80gb").replace("us-east-1,us-east-1a", "nyc2,")
    with open_store(":memory:") as store:
        ingest(store, "skypilot-catalogue", write(tmp_path / "do" / "vms.csv", HEAD + line), **AT)
        assert store.execute("SELECT provider FROM markets") == [("digitalocean",)]


def test_zeros_are_no_prices_and_gpus_alone_are_no_instance(tmp_path):
    text = (
        HEAD
        + LINE
        + LINE.replace("9.83", "0.00")
        + LINE.replace("9.83", "")
        + LINE.replace("p4d.24xlarge", "")
    )
    with open_store(":memory:") as store:
        done = ingest(store, "skypilot-catalogue", write(tmp_path / "aws.csv", text), **AT)
    assert done.reasons == {
        "no price_usd": 1, "price_usd is a placeholder, not a price": 1, "price of GPUs without the instance that has them": 1
    }  # fmt: skip
    assert done.added == 1


def test_google_clouds_catalogue_is_refused_as_its_machines_are_split(tmp_path):
    path = write(tmp_path / "gcp" / "vms.csv", HEAD + LINE)
    with pytest.raises(SourceFileError, match=r"the host and its GPUs.*gcp-catalogue"):
        read(SkyPilotCatalogue(), path, **AT)


def test_one_type_with_several_gpu_memories_is_several_types(tmp_path):
    info = "\"{{'Gpus': [], 'TotalGpuMemoryInMiB': {}}}\""
    lines = [
        f'1x-RTX_4090,32,64,RTX4090,1,{info.format(mib)},0.40,{usd},"Germany, DE, EU",\n'
        for mib, usd in ((24564, 0.2), (49140, 0.3))
    ]
    rows = read(SkyPilotCatalogue(), write(tmp_path / "vast.csv", HEAD + "".join(lines)), **AT)["price"]
    assert rows["instance_type"].tolist() == ["1x-RTX_4090_24GB", "1x-RTX_4090_48GB"]
    assert set(rows["region"]) == {"Germany, DE, EU"}
