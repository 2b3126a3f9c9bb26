from equipoise._guard import check_package_name

check_package_name(__name__, "equipoise.assignors")
