"""A server with the API of EC2, and a client of it."""

import pytest


def own_tags(resource):
    """Return the tags of a resource; moto searches the tags of all resources, for each instance that it lists."""
    tags = resource.ec2_backend.tags.get(resource.id, {})
    return [{"resource_id": resource.id, "key": key, "value": value} for key, value in tags.items()]


@pytest.fixture(scope="module")
def moto_url():
    from moto.ec2.models.core import TaggedEC2Resource
    from moto.server import ThreadedMotoServer

    TaggedEC2Resource.get_tags = own_tags
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def moto_client(url, region="us-east-1"):
    """Return a client of moto in a region, without instances and with a launch template."""
    import boto3

    client = boto3.client("ec2", region_name=region, endpoint_url=url)
    ids = [
        one["InstanceId"]
        for reservation in client.describe_instances()["Reservations"]
        for one in reservation["Instances"]
    ]
    if ids:
        client.terminate_instances(InstanceIds=ids)
    names = [one["LaunchTemplateName"] for one in client.describe_launch_templates()["LaunchTemplates"]]
    if "training" not in names:
        image = client.describe_images()["Images"][0]["ImageId"]
        client.create_launch_template(LaunchTemplateName="training", LaunchTemplateData={"ImageId": image})
    return client


def forget_ended(region="us-east-1"):
    """Remove ended instances and their spot requests from moto, which searches all of them in every call.

    EC2 forgets an ended instance after about an hour.
    """
    from moto.ec2 import ec2_backends

    backend = ec2_backends["123456789012"][region]
    for name, reservation in list(backend.reservations.items()):
        if all(instance.state == "terminated" for instance in reservation.instances):
            del backend.reservations[name]
    held = {instance.id for group in backend.reservations.values() for instance in group.instances}
    for name, request in list(backend.spot_instance_requests.items()):
        if request.instance_id not in held:
            del backend.spot_instance_requests[name]
