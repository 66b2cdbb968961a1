//! The drone-delivery application: requests, workflow and the five simulated services
