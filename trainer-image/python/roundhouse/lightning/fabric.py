class ElasticFabric:
    pass
