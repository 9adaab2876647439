module github.com/terraform-providers/terraform-provider-docker/shim

go 1.26.6
