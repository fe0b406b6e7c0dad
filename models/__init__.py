"""The networks of Triwire and everything that is needed to run one."""
