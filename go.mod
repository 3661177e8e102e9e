module oneshot

go 1.26.8
