from gguf_kernels.bench import main

raise SystemExit(main())
