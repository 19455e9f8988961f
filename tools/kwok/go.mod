module dsec.dev/tools/kwok

go 1.26
