//! Goal: any text is either an endpoint, which `Display` writes as the same text, or is refused with one sentence.

use verbs::RcEndpoint;

#[test]
fn any_text_is_an_endpoint_or_refused_in_a_sentence() {
    let seeds = [
        "10.0.0.1,0x1234ab,0x000100",
        "fd00::1, 17 , 0",
        "::ffff:10.0.0.1,1,1",
        "10.0.0.1,0xffffff,0x1000000",
        "10.0.0.1,+1,0x+2",
        "é,1,2",
        ",,",
        "0x",
    ];
    let pieces: Vec<char> = "0123456789abcdefx.,: +-%é\u{2028}\n\0".chars().collect();
    let mut state = 1u64;
    let mut below = |n: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    let mut understood = 0;
    for round in 0..20_000 {
        let mut text: Vec<char> = seeds[round % seeds.len()].chars().collect();
        for _ in 0..below(4) {
            let at = below(text.len() + 1);
            match below(3) {
                0 => text.insert(at, pieces[below(pieces.len())]),
                1 if at < text.len() => text[at] = pieces[below(pieces.len())],
                _ => text.truncate(at),
            }
        }
        let text: String = text.into_iter().collect();
        match text.parse::<RcEndpoint>() {
            Ok(endpoint) => {
                understood += 1;
                assert_eq!(endpoint.to_string().parse(), Ok(endpoint), "{text:?}");
                assert!(!text.contains('+'), "{text:?}");
            }
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("IP,QPN,PSN") && !error.chars().any(char::is_control), "{error:?}");
            }
        }
    }
    assert!(understood > 1000, "{understood}");
}
