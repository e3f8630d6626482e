"""The core process: scheduler, KV cache, model runner and the step loop. The only user of torch."""
