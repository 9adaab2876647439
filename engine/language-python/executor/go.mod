module gb10-serving/engine/language-python/executor

go 1.26.6

require github.com/pulumi/pulumi/sdk/v3 v3.274.1
