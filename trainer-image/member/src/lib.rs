//! A process as a member of generations, whatever it trains with. Nothing here needs libtorch.
